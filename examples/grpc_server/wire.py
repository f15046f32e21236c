"""What protoc makes of generation.proto, made anew when this is imported (grpcio-tools): nothing generated is kept."""

from __future__ import annotations

from typing import Any

import grpc

protos: Any
services: Any
protos, services = grpc.protos_and_services("examples/grpc_server/generation.proto")

ERROR, BOUND, RETRYABLE = "boundedgen-error", "boundedgen-bound", "boundedgen-retryable"  #: trailing metadata
PUSHBACK = "grpc-retry-pushback-ms"  #: gRPC's own: a client with a retryPolicy waits for so long
