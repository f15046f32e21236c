"""A reverse proxy that keeps its upstream sockets: when a client goes it reads on for `hold` seconds, for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

PIECE = 1 << 16


class HoldingProxy:
    """For connections of one request each, as it comes; nothing is looked at."""

    def __init__(self, upstream: tuple[str, int], hold: float) -> None:
        self.void = 0  #: bytes that were read for nobody
        self.held = 0  #: sockets that are read for nobody now
        self._upstream, self._hold = upstream, hold

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            above, below = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.close()
            return
        up = asyncio.create_task(self._request(reader, below))
        try:
            await self._answer(above, writer, up)
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
            for end in (below, writer):
                end.close()

    async def _request(self, reader: asyncio.StreamReader, below: asyncio.StreamWriter) -> None:
        """Until the client hangs up."""
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(PIECE):
                below.write(piece)
                await below.drain()

    async def _answer(self, above: asyncio.StreamReader, writer: asyncio.StreamWriter, up: asyncio.Task[None]) -> None:
        while True:
            piece = asyncio.create_task(above.read(PIECE))
            await asyncio.wait((piece, up), return_when=asyncio.FIRST_COMPLETED)
            if up.done():
                await self._read_on(above, piece)
                return
            if not piece.result():
                return
            try:
                writer.write(piece.result())
                await writer.drain()
            except ConnectionError:
                await self._read_on(above, asyncio.create_task(above.read(PIECE)))
                return

    async def _read_on(self, above: asyncio.StreamReader, piece: asyncio.Task[bytes]) -> None:
        self.held += 1
        try:
            async with asyncio.timeout(self._hold):
                while data := await piece:
                    self.void += len(data)
                    piece = asyncio.create_task(above.read(PIECE))
        except (TimeoutError, ConnectionError):
            piece.cancel()
        finally:
            self.held -= 1


@contextlib.asynccontextmanager
async def holding_proxy(upstream: tuple[str, int], hold: float) -> AsyncIterator[tuple[HoldingProxy, int]]:
    """The proxy, and its port."""
    proxy = HoldingProxy(upstream, hold)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        server.close()


# --- nginx, told to do the same --------------------------------------------------------------------------------------

#: Whole answers only: until there is one nothing comes to be read, and `proxy_read_timeout` is how long it holds on.
NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://{upstream};
            proxy_ignore_client_abort on;
            proxy_read_timeout {hold:.0f}ms;
            proxy_next_upstream off;
        }}
    }}
}}
"""


def nginx() -> str | None:
    """Debian has it in a folder for administrators."""
    return shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin")))


@contextlib.asynccontextmanager
async def nginx_proxy(upstream: tuple[str, int], hold: float) -> AsyncIterator[int]:
    """nginx with `proxy_ignore_client_abort on`; its port."""
    program, port = nginx(), free_port()
    assert program is not None, "apt-get install nginx-light"
    with tempfile.TemporaryDirectory(prefix="boundedgen-nginx-") as folder:
        _configure(Path(folder), port, upstream, hold)
        process = await asyncio.create_subprocess_exec(program, "-p", folder, "-c", f"{folder}/nginx.conf")
        try:
            await _listening(port, process)
            yield port
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _configure(folder: Path, port: int, upstream: tuple[str, int], hold: float) -> None:
    told = NGINX.format(folder=folder, port=port, upstream=":".join(map(str, upstream)), hold=1000 * hold)
    (folder / "nginx.conf").write_text(told)


async def _listening(port: int, process: asyncio.subprocess.Process) -> None:
    for _ in range(500):
        assert process.returncode is None, "nginx ended"
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("nginx does not listen")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
