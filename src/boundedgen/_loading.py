"""The tokenizer, loaded beside the engine's own boot: it can take seconds."""

from boundedgen._aside import Aside
from boundedgen._driver import Driver
from boundedgen._errors import BoundedGenError
from boundedgen.abc import EngineHost, Tokenizer


class Loading:
    """If it cannot be had, the pipeline is FAILED. Knows nothing of the pipeline, which must not live on for it."""

    def __init__(self, host: EngineHost, driver: Driver, aside: Aside) -> None:
        self._host = host
        self._driver = driver
        self._aside = aside
        self._tokenizer: Tokenizer | None = None

    def start(self) -> None:
        try:
            if not self._aside.run(self._load):
                self._driver.post("give_up", "", "no thread could be started to load the tokenizer")
        finally:
            self._aside.close()

    def done(self) -> bool:
        return self._tokenizer is not None

    def need(self) -> Tokenizer:
        assert self._tokenizer is not None, "submit is refused until the tokenizer is there"
        return self._tokenizer

    def _load(self) -> None:
        try:
            self._tokenizer = self._host.tokenizer()
        except BoundedGenError as error:
            self._driver.post("give_up", "model", str(error))
        except BaseException as error:  # whatever it is, nobody else hears of it
            self._driver.post("give_up", "model", f"the tokenizer could not be loaded: {error!r}")
        self._driver.wakers.wake()
