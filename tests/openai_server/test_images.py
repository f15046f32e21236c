"""Images as OpenAI's protocol has them: parts with data: URLs."""

import base64
import io
from pathlib import Path

import PIL.Image
from images.vision_lanes import QWEN
from openai_server.served import served


def test_a_picture_in_a_data_url_is_seen_and_one_that_is_none_is_a_400() -> None:
    out = io.BytesIO()
    PIL.Image.new("RGB", (112, 112), (200, 10, 10)).save(out, "PNG")
    good = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    with served(Path(QWEN)) as server:

        def chat(url: str) -> dict[str, object]:
            parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "hello"}]
            return server.chat(messages=[{"role": "user", "content": parts}])

        answer = server.post("/v1/chat/completions", chat(good))
        assert answer.status_code == 200
        assert answer.json()["usage"]["prompt_tokens"] == 24 + 18
        refused = server.post("/v1/chat/completions", chat(good[:60]))
        assert refused.status_code == 400
        assert refused.json()["error"]["type"] == "invalid_request_error"
        assert server.post("/v1/chat/completions", server.chat()).status_code == 200
        server.at_rest()
