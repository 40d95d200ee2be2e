"""Options of the API in a configuration file, through `diptych up`, to the answers."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from diptych.testing.platform import MODEL, Platform, platform

OPTIONS = """
model_aliases = "deepseek-chat=plain, claude-*"
reasoning_field = "both"
stream_usage_style = "deepseek"
allow_tasks = true
max_n = 2
git_commit = "0123abc"
"""
USER = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder: Path = tmp_path_factory.mktemp("options")
    (folder / "diptych.toml").write_text(OPTIONS)
    with platform(folder, "--config", str(folder / "diptych.toml")) as started:
        yield started


def test_a_file_decides_what_the_api_leaves_open(running: Platform) -> None:
    with httpx.Client(base_url=running.base_url, timeout=60) as http:

        def ask(model: str, **fields: object) -> httpx.Response:
            body = {"model": model, "messages": USER, "max_tokens": 8, "seed": 1, **fields}
            return http.post("/v1/chat/completions", json={"ignore_eos": True, **body})

        plain = ask("deepseek-chat").json()
        assert plain["model"] == MODEL
        assert plain["choices"][0]["message"].keys() == {"role", "content"}
        thinking = ask("claude-sonnet-5").json()["choices"][0]["message"]
        assert thinking["reasoning"] == thinking["reasoning_content"] != ""
        assert ask("gpt-5").status_code == 404
        assert ask(MODEL, n=3).json()["error"]["param"] == "n"
        assert ask(MODEL, task="title").status_code == 200
        *_, last, done, end = ask("deepseek-chat", stream=True).text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        assert '"finish_reason":"length"' in last and '"completion_tokens":8' in last
        names = [model["id"] for model in http.get("/v1/models").json()["data"]]
        assert names == [MODEL, "deepseek-chat"]
        assert http.get("/version").json()["git"] == "0123abc"
        assert http.head("/ping").status_code == 200
        assert http.options("/v1/chat/completions").headers["allow"] == "POST"
    running.wait_for_baseline(limit_s=5)
