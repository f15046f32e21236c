"""What others than clients ask: metrics, probes and statistics. They answer at once, in every state of the lane."""

from __future__ import annotations

from typing import final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from boundedgen.endpoints import Answer, liveness, readiness, startup
from boundedgen.exporters.prometheus import PipelineCollector
from examples.openai_server.lane import Lane


@final
class Looking:
    def __init__(self, lane: Lane) -> None:
        self._pipeline, self._name = lane.pipeline, lane.settings.model
        self._registry = CollectorRegistry()
        self._registry.register(PipelineCollector({self._name: self._pipeline}))
        ProcessCollector(registry=self._registry)

    def routes(self) -> list[Route]:
        pages = (self.livez, self.readyz, self.startupz, self.stats, self.metrics)
        return [Route(f"/{page.__name__}", page) for page in pages] + [Route("/health", self.readyz)]

    async def livez(self, _: Request) -> Response:
        """200 as long as it heals by itself."""
        return _sent(liveness(self._pipeline.health()))

    async def readyz(self, _: Request) -> Response:
        """200: send work here. 503 from the moment at which a drain begins."""
        return _sent(readiness(self._pipeline.health(), self._pipeline.stats()))

    async def startupz(self, _: Request) -> Response:
        return _sent(startup(self._pipeline.health()))

    async def stats(self, _: Request) -> Response:
        """For `python -m boundedgen top URL`."""
        return JSONResponse(self._pipeline.stats_document(self._name), headers={"Cache-Control": "no-store"})

    async def metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


def _sent(answer: Answer) -> Response:
    return JSONResponse(answer.body, answer.status, answer.headers)
