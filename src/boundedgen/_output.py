"""What a command prints, to whoever reads it: its exit status says what there is all the same."""

import os
import sys


def show(text: str) -> bool:
    """False: nobody reads any more (`| head`), or ever did (`>&-`)."""
    out = sys.stdout
    if out is None:
        return False
    encoding = out.encoding or "utf-8"
    try:
        out.write(text.encode(encoding, "replace").decode(encoding))
        out.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # for what Python still writes at its end
        return False
    return True
