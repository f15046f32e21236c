"""Tokenizers that are first used at the same moment: openvino's own first look at an array is not made for that."""

import subprocess
import sys
import textwrap

from genai.lanes import PLAIN

ROUNDS = 6
TOGETHER = textwrap.dedent(
    """
    import sys, threading
    from boundedgen._text import GenAITokenizer

    ready = threading.Barrier(4)

    def use():
        ready.wait()
        tokenizer = GenAITokenizer(sys.argv[1])
        for _ in range(20):
            tokenizer.encode("hello", add_special_tokens=True)

    threads = [threading.Thread(target=use, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    print("done" if not any(thread.is_alive() for thread in threads) else "stuck")
    """
)


def test_tokenizers_that_begin_together_in_a_fresh_process_never_stop_it() -> None:
    for _ in range(ROUNDS):
        program = [sys.executable, "-c", TOGETHER, PLAIN]
        assert subprocess.run(program, capture_output=True, text=True, timeout=100, check=True).stdout == "done\n"
