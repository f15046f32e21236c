"""What a simulated engine serves, and how fast."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from attrs import field, frozen

from boundedgen._core._events import EngineFacts, PoolFacts
from boundedgen.abc import Request
from boundedgen.testing._sim_scheduler import Scheduler, WorkingStay

__all__ = ["SimModel"]


def _never(prompt: Sequence[int]) -> int | None:
    return None


@final
@frozen(kw_only=True)
class SimModel:
    """What the simulated engine serves, and how fast. Seconds are virtual."""

    pools: tuple[PoolFacts, ...] = (PoolFacts(name="kv", blocks=65, tokens_per_block=32),)
    probe_blocks: Mapping[str, int] = field(factory=lambda: {"kv": 1})
    running_max: int = 16
    max_num_batched_tokens: int = 256
    split_fuse: bool = True  #: prompts are computed in parts, beside what decodes; False: whole, in steps of their own
    proof: str = "perf_metrics"  #: or "request_count", the weaker one of older releases: it takes a step longer
    vocab_size: int = 259
    eos_token_id: int = 2
    natural_length: Callable[[Sequence[int]], int | None] = _never  #: eos as that output token; None: at no length
    rss_bytes: int | None = None  #: resident memory that a fresh engine tells; None: it tells none
    boot_s: float = 4.0
    step_s: float = 0.02  #: base of a step
    token_s: float = 0.001  #: added for each scheduled token
    pipe_s: float = 0.0  #: from something being said to its arrival
    exit_s: float = 0.07  #: from a kill, or a death, to `Exited`

    def working(self, request: Request, sequences: int) -> WorkingStay:
        """A request as it goes into the scheduler."""
        config: Mapping[str, Any] = request.config
        return WorkingStay(
            request.stay,
            tuple(request.prompt),
            max_new_tokens=config["max_new_tokens"],
            sequences=sequences,
            natural_length=None if config.get("ignore_eos") else self._length(request),
            eos_token_id=self.eos_token_id,
            vocab_size=self.vocab_size,
        )

    def _length(self, request: Request) -> int | None:
        """One that is continued ends where it would have."""
        whole = self.natural_length(request.prompt[: len(request.prompt) - request.shown])
        return None if whole is None else whole - request.shown

    def text(self, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        """The token ids that come out for the ids of `prompt`, eos included where the text ends by itself."""
        work = self.working(Request(0, prompt, {"max_new_tokens": max_new_tokens}, 0.0), 1)
        while work.ending() is None:
            work.generate()
        return work.generated

    @property
    def proof_steps(self) -> int:
        """Steps after an end until it can be proved, where the step that removes it is not enough."""
        return 2 if self.proof == "request_count" else 0

    def scheduler(self) -> Scheduler:
        most = self.running_max + max(self.probe_blocks.values(), default=0)
        return Scheduler(self.pools, self.max_num_batched_tokens, None if self.split_fuse else most)

    def facts(self, *, lies: bool = False) -> EngineFacts:
        """What it tells when it is ready. `lies`: that it generates other tokens than it should."""
        return EngineFacts(
            device="SIM",
            versions={"sim": "1"},
            pools=self.pools,
            block_size=next(p.tokens_per_block or 1 for p in self.pools if p.name == "kv"),
            cache_bytes=None,
            vocab_size=self.vocab_size,
            running_max=self.running_max,
            probe_blocks=dict(self.probe_blocks),
            max_prompt_tokens=None if self.split_fuse else self.max_num_batched_tokens,
            hybrid=len(self.pools) > 1,
            proof=self.proof,
            canary=(2,) if lies else (1,),
            exact=True,
        )
