"""A lane over gRPC, in which every call ends. docs/grpc.md.

    pip install ".[grpc]"        # in a checkout
    python -m examples.grpc_server MODEL --device CPU --port 50051

generation.proto what is asked and answered · server.py the calls · statuses.py how they end · probes.py health ·
client.py a client that tries again as it should
"""

import os

#: Engines are started by fork and exec; gRPC need not be made fit for use in the child, and write a line for each.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
