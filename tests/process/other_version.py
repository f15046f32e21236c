"""An engine's process of a version to come: its first frame is not one of ours."""

import os
import sys
import time

from boundedgen._engine._frames import VERSION, pack

if __name__ == "__main__":
    frame = bytearray(pack(16, int(sys.argv[2]), b"[]"))
    assert frame[2] == VERSION
    frame[2] += 1
    os.write(int(sys.argv[4]), frame)
    time.sleep(60)
