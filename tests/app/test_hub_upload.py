"""`push_to_hub` against a hub of our own that speaks the hub's protocol."""

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants
from toys import recipe_of, write_data

import msft
from msft.errors import HubError, RecipeError

pytestmark = pytest.mark.usefixtures("no_reports")


class Hub:
    """What was asked of it; `failing` makes it refuse commits."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.summaries: list[str] = []
        self.tokens: set[str | None] = set()
        self.failing = False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hub.tokens.add(self.headers.get("Authorization"))
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = hub.answer(self.path, body, f"http://{self.headers['Host']}")
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Nothing on stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, body: bytes, here: str) -> tuple[int, dict[str, Any]]:
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return 200, {"url": f"{here}/me/{self.created[-1]['name']}"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            return 200, {"files": [{"path": name, **regular} for name in names]}
        if path.endswith("/commit/main") and not self.failing:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header":
                    self.summaries.append(line["value"]["summary"])
                else:
                    content = base64.b64decode(line["value"]["content"])
                    self.files[line["value"]["path"]] = content
            repo = path.removeprefix("/api/models/").removesuffix("/commit/main")
            url = f"{here}/{repo}/commit/c0ffee"
            return 200, {"commitOid": "c0ffee", "commitUrl": url, "success": True}
        return 403, {"error": f"no room for {', '.join(map(str, self.tokens))}"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = Hub()
    thread = Thread(target=served.server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield served
    served.server.shutdown()
    served.server.server_close()
    thread.join()


def test_best_goes_up_once_and_what_failed_goes_up_later(hub: Hub, tmp_path: Path) -> None:
    write_data(tmp_path, train=32, held_out=8)
    keys: dict[str, Any] = {"method": "sft", "num_train_epochs": 0.5}
    recipe = recipe_of(tmp_path, **keys, push_to_hub=True)
    out, notes = tmp_path / "my-run", list[str]()
    hub.failing = True
    match = r"my-run/best was not uploaded to my-run: .*no room for Bearer \*\*\*.*same command"
    with pytest.raises(HubError, match=match) as raised:
        msft.train(recipe, out, quiet=True)
    assert "hf_secret" not in str(raised.value), "the hub has echoed it"
    assert (out / "summary.json").exists()
    assert not (out / "hub.json").exists()
    hub.failing = False
    trained = (out / "steps.jsonl").read_bytes()
    for _ in range(2):
        result = msft.train(recipe, out, quiet=True, notice=notes.append)
    best = result.summary["best"]["checkpoint"]
    assert hub.summaries == [f"msft: checkpoint {best}"], "once"
    (uploaded,) = (note for note in notes if "me/my-run/commit/c0ffee" in note)
    assert uploaded.startswith("uploaded to ")
    here = {path.name: path.read_bytes() for path in (out / "best").iterdir()}
    assert here.pop("manifest.json")
    assert hub.files == here
    front = hub.files["README.md"].decode().split("---\n")[1]
    assert front == (
        "library_name: transformers\npipeline_tag: text-generation\ntags: [msft, sft]\n"
    ), "the hub refuses a base_model that is no name of the hub"
    assert (out / "steps.jsonl").read_bytes() == trained
    assert [each["name"] for each in hub.created] == ["my-run"] * 2
    assert all(each.get("private") or each["visibility"] == "private" for each in hub.created)
    assert hub.tokens == {"Bearer hf_secret"}
    assert json.loads((out / "hub.json").read_text()) == {
        "repo": "me/my-run",
        "checkpoint": best,
        "commit": "c0ffee",
    }


def test_another_place_gets_the_result_too(hub: Hub, tmp_path: Path) -> None:
    """`hub_model_id` may change after a run has ended; a folder that has another name may not."""
    write_data(tmp_path, train=32, held_out=8)
    keys: dict[str, Any] = {"method": "sft", "num_train_epochs": 0.5, "push_to_hub": True}
    msft.train(recipe_of(tmp_path, **keys), tmp_path / "run", quiet=True)
    (tmp_path / "run").rename(tmp_path / "kept")
    for name in (None, "run", "me/run", "better", "better"):
        recipe = recipe_of(tmp_path, **keys, hub_model_id=name)
        msft.train(recipe, tmp_path / "kept", quiet=True)
    assert [each["name"] for each in hub.created] == ["run", "better"]
    assert json.loads((tmp_path / "kept/hub.json").read_text())["repo"] == "me/better"


def test_without_a_token_nothing_is_started(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "absent"))
    write_data(tmp_path, train=32, held_out=8)
    with pytest.raises(RecipeError, match="hf auth login"):
        msft.train(recipe_of(tmp_path, method="sft", push_to_hub=True), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert hub.created == []
