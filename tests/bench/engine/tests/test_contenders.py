"""The ways to run an engine, with programs that answer at once in place of the engines."""

from __future__ import annotations

import stat
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from engine.contenders import ContenderFailure
from engine.contenders.llama_server import LlamaServer
from engine.contenders.nightshift import Nightshift
from engine.contenders.python_peer import PythonPeer
from engine.places import PEERS
from engine.workloads import Workload, generate

_NIGHTSHIFT = """
    import json, sys
    if "--help" in sys.argv:
        sys.exit(print("  --precision <P>  How to compute [possible values: auto, bf16, int8, f32]"))
    source, target = sys.argv[sys.argv.index("--model") + 2], sys.argv[sys.argv.index("-o") + 1]
    if "broken" in sys.argv:
        sys.exit(3)
    with open(source) as lines, open(target, "w") as answers:
        for line in reversed(lines.readlines()):
            request = json.loads(line)
            usage = {"prompt_tokens": 5, "completion_tokens": request["body"]["max_tokens"],
                     "prompt_tokens_details": {"cached_tokens": 2}}
            choice = {"message": {"content": request["custom_id"]}}
            response = {"status_code": 200, "body": {"choices": [choice], "usage": usage}}
            print(json.dumps({"custom_id": request["custom_id"], "response": response}), file=answers)
    print(json.dumps({"load_s": 0.001}))
"""

_LLAMA_SERVER = """
    import json, sys
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.reply(200, {})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = body["messages"][-1]["content"]
            usage = {"prompt_tokens": len(text), "completion_tokens": body["max_tokens"]}
            self.reply(500 if BROKEN in text else 200, {"choices": [{"message": {"content": text}}], "usage": usage})

        def reply(self, status, value):
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    BROKEN = "nothing has this"
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

_PEER = f"""
    import sys
    sys.path.insert(0, {str(PEERS)!r})
    import service

    class Echo:
        version = "echo 1"

        def prepare(self):
            print("libraries print where they like")

        def run(self, bodies):
            if bodies[0]["max_tokens"] == 16:
                raise ValueError("too short")
            return [service.Answer(body["messages"][0]["content"], 1, body["max_tokens"], 0) for body in bodies]

    service.serve(Echo)
"""


class ContenderTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.short = generate("short", 1, lines=20)

    def _program(self, source: str) -> Path:
        path = self.folder / "program"
        path.write_text(f"#!{sys.executable} -B\n{textwrap.dedent(source)}", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def _server(self, source: str) -> LlamaServer:
        return LlamaServer("llama.cpp", "bf16", self._program(source), self.folder, threads=2)

    def _run_folder(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir()
        return path

    def test_nightshift_answers_come_in_the_order_of_the_lines(self) -> None:
        program = self._program(_NIGHTSHIFT)
        self.assertEqual(Nightshift.precisions(program), {"bf16", "int8"})
        timing = Nightshift(program, self.folder, "bf16").run(self.short, self._run_folder("run"))
        self.assertEqual([answer.text for answer in timing.answers], [line.custom_id for line in self.short.lines])
        self.assertEqual({(answer.completion_tokens, answer.cached_tokens) for answer in timing.answers}, {(64, 2)})
        self.assertEqual(timing.load_s, 0.001)
        self.assertGreater(timing.peak_bytes, 1_000_000)

    def test_nightshift_that_fails_is_a_failure(self) -> None:
        with self.assertRaises(ContenderFailure):
            Nightshift(self._program(_NIGHTSHIFT), self.folder, "broken").run(self.short, self._run_folder("run"))

    def test_llama_server_answers_come_in_the_order_of_the_lines(self) -> None:
        server = self._server(_LLAMA_SERVER)
        timing = server.run(self.short, self._run_folder("run"))
        self.assertEqual([answer.text for answer in timing.answers], _last_messages(self.short))
        self.assertGreater(timing.load_s, 0)

    def test_llama_server_that_refuses_or_ends_is_a_failure(self) -> None:
        for name, source in (
            ("refuses", _LLAMA_SERVER.replace("nothing has this", "Note 7.")),
            ("ends", "raise SystemExit(1)"),
        ):
            with self.assertRaises(ContenderFailure):
                self._server(source).run(self.short, self._run_folder(name))

    def test_python_peer_stays_over_runs_and_tells_its_errors(self) -> None:
        peer = PythonPeer("echo", "bf16", [str(self._program(_PEER))], {}, self.folder / "log")
        self.addCleanup(peer.close)
        for name in ("first", "second"):
            timing = peer.run(self.short, self._run_folder(name))
            self.assertEqual([answer.text for answer in timing.answers], _last_messages(self.short))
        with self.assertRaisesRegex(ContenderFailure, "too short"):
            peer.run(generate("shared", 1, lines=2), self._run_folder("third"))

    def test_python_peer_that_ends_is_a_failure(self) -> None:
        peer = PythonPeer("gone", "bf16", [str(self._program("raise SystemExit(1)"))], {}, self.folder / "log")
        self.addCleanup(peer.close)
        with self.assertRaises(ContenderFailure):
            peer.run(self.short, self._run_folder("run"))


def _last_messages(workload: Workload) -> list[str]:
    return [line.messages[-1][1] for line in workload.lines]
