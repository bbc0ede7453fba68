"""LocalStack in a container: what is asked of Docker, by a stand-in, and what compose.yaml says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

from emulator.stack import cli, docker, localstack, programs
from emulator.stack.failure import StackFailure, Unavailable
from emulator.stack.paths import COMPOSE_FILE, LOCALSTACK_SETTINGS, State
from emulator.stack.processes import Children
from emulator.stack.running import Options, Stack

# Notes how it was called; where `docker logs --follow` follows a container's log, it is that container.
_STAND_IN = """#!{python}
import http.server, json, os, sys

with open("{calls}", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], os.environ.get("LOCALSTACK_PORT")]) + "\\n")
for word in os.environ["STAND_IN_FAILS"].split():
    if word in sys.argv:
        sys.exit(f"{{word}} is told to fail")
if "getconf" in sys.argv:
    print("glibc 2.41")
if "ps" in sys.argv:
    print("0123456789ab")
if sys.argv[1:] == ["logs", "--follow", "0123456789ab"]:
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/_localstack/health" else 404)
            self.end_headers()
    http.server.HTTPServer(("127.0.0.1", int(os.environ["LOCALSTACK_PORT"])), Health).serve_forever()
"""


class StandInTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        self.state = State(self.root / "state")
        self.calls_file = self.root / "calls"
        self.program = self.root / "bin/docker"
        self.program.parent.mkdir()
        self.program.write_text(_STAND_IN.format(python=sys.executable, calls=self.calls_file))
        self.program.chmod(0o755)
        self.children = Children()
        self.addCleanup(self.children.stop)
        self.told_to_fail("")

    def told_to_fail(self, words: str) -> None:
        variables = mock.patch.dict(os.environ, {"PATH": str(self.program.parent), "STAND_IN_FAILS": words})
        variables.start()
        self.addCleanup(variables.stop)

    def calls(self) -> list[tuple[list[str], str | None]]:
        return [tuple(json.loads(line)) for line in self.calls_file.read_text().splitlines()]

    def compose_calls(self) -> list[list[str]]:
        """What Compose was told to do, without its own options."""
        options = re.compile(r"compose --ansi never --project-name \S+ --file \S+ (.*)")
        found = (options.fullmatch(" ".join(arguments)) for arguments, _ in self.calls())
        return [match[1].split() for match in found if match]


class EngineTest(StandInTest):
    def test_an_engine_with_compose_is_found(self) -> None:
        self.assertTrue(docker.has_engine())
        self.assertEqual([arguments for arguments, _ in self.calls()], [["compose", "version"], ["info"]])

    def test_no_engine_or_no_compose_is_none(self) -> None:
        for failing in ("info", "version"):
            self.told_to_fail(failing)
            self.assertFalse(docker.has_engine(), failing)
            with self.assertRaisesRegex(Unavailable, "--emulator localstack"):
                docker.Containers(self.state)

    def test_a_stack_without_an_engine_ends_as_unavailable(self) -> None:
        # It once tried to remove containers that it had not started, and failed with that.
        self.program.unlink()
        for name in ("nightshift", "terraform"):
            program = self.program.with_name(name)
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
        (self.root / "api.zip").touch()
        options = Options(
            emulator="docker",
            state=self.state.root,
            zips=self.root,
            port=None,
            settings={},
            nightshift=self.program.with_name("nightshift"),
            worker=False,
            check_drift=False,
        )
        stack = Stack(options)
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(Unavailable):
            stack.start()
        stack.stop()

    def test_no_docker_is_none(self) -> None:
        self.program.unlink()
        self.assertFalse(docker.has_engine())

    def test_a_docker_that_is_no_program_is_none(self) -> None:
        self.program.write_bytes(b"\0")
        self.assertFalse(docker.has_engine())


class ContainersTest(StandInTest):
    def test_a_start_waits_for_the_health_page_at_the_port_that_compose_was_told(self) -> None:
        endpoint = docker.Containers(self.state).start(self.children)
        [(arguments, port)] = [call for call in self.calls() if "up" in call[0]]
        self.assertEqual(endpoint, f"http://127.0.0.1:{port}")
        self.assertEqual(arguments[arguments.index("--file") + 1], str(COMPOSE_FILE))
        # First, what a stack that was killed left behind is removed.
        self.assertEqual([call[0] for call in self.compose_calls()], ["down", "up", "ps"])
        self.assertEqual(self.compose_calls()[1], ["up", "--detach", "--wait"])
        with urllib.request.urlopen(f"{endpoint}/_localstack/health", timeout=5) as answer:
            self.assertEqual(answer.status, 200)
        self.children.check()

    def test_a_start_that_fails_names_the_log_and_shows_its_end(self) -> None:
        self.told_to_fail("up")
        with self.assertRaises(StackFailure) as raised:
            docker.Containers(self.state).start(self.children)
        log = re.escape(str(self.state.log("localstack")))
        said = str(raised.exception)
        self.assertRegex(said, f"`docker compose up` ended with 1: see {log}, or use --emulator localstack\n")
        self.assertIn("up is told to fail", said)
        # What the container wrote is in the log too.
        self.assertEqual(self.compose_calls()[-1], ["logs", "--no-color"])

    def test_a_container_that_ends_ends_the_stack(self) -> None:
        self.told_to_fail("--follow")
        with self.assertRaisesRegex(StackFailure, "(?s)localstack ended with 1:.*--follow is told to fail"):
            docker.Containers(self.state).start(self.children)

    def test_a_stop_removes_everything(self) -> None:
        docker.Containers(self.state).stop()
        self.assertEqual(self.compose_calls(), [["down", "--volumes", "--remove-orphans", "--timeout=5"]])

    def test_a_state_has_one_project_whatever_the_port(self) -> None:
        for state in (self.state, self.state, State(self.root / "other")):
            docker.Containers(state).stop()
        first, second, other = (
            call[call.index("--project-name") + 1] for call, _ in self.calls() if "down" in call
        )
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)

    def test_down_removes_what_a_killed_stack_left(self) -> None:
        self.state.root.mkdir()
        self.state.summary.write_text(json.dumps({"pid": os.getpid(), "emulator": "docker"}))
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(cli.main(["down", "--state", str(self.state.root)]), 0)
        self.assertEqual([call[0] for call in self.compose_calls()], ["down"])
        self.assertFalse(self.state.summary.exists())


class ProgramsTest(StandInTest):
    def zips(self, program: bytes) -> Path:
        folder = self.root / "lambda/host"
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / "api.zip", "w") as archive:
            archive.writestr("bootstrap", program)
        return folder

    def test_a_program_for_an_older_c_library_starts(self) -> None:
        zips = self.zips(b"\x7fELF...\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0")
        programs.check_glibc(zips, 34, "x86_64")
        docker.Containers(self.state).check_programs(zips)

    def test_a_program_for_a_newer_one_is_refused_with_what_to_do(self) -> None:
        # Linked on a newer distribution than the image's.
        zips = self.zips(b"\x7fELF...\0GLIBC_2.17\0GLIBC_2.42\0")
        refused = "needs glibc 2.42, and the container has 2.41: .*package --target"
        with self.assertRaisesRegex(StackFailure, refused):
            docker.Containers(self.state).check_programs(zips)

    def test_a_program_of_another_system_is_refused(self) -> None:
        zips = self.zips(b"\xcf\xfa\xed\xfe")
        with self.assertRaisesRegex(StackFailure, "is not for Linux: .*--zips .*lambda/arm64"):
            programs.check_glibc(zips, 41, "arm64")


class ComposeFileTest(unittest.TestCase):
    lines = [
        line.strip() for line in COMPOSE_FILE.read_text().splitlines() if not line.strip().startswith("#")
    ]

    def test_the_image_is_the_release_that_runs_without_docker_too(self) -> None:
        images = [line for line in self.lines if line.startswith("FROM ")]
        self.assertEqual(images, [f"FROM localstack/localstack:{localstack.VERSION}"])

    def test_nothing_listens_beyond_this_machine(self) -> None:
        published = [line for line in self.lines if re.search(r"^- \"?.*:.*\d", line)]
        self.assertEqual(len(published), 1)
        self.assertRegex(published[0], r'^- "127\.0\.0\.1:\$\{LOCALSTACK_PORT:-\d+\}:')

    def test_the_settings_are_those_of_the_process_and_none_is_overridden(self) -> None:
        self.assertIn(f"env_file: {LOCALSTACK_SETTINGS.relative_to(COMPOSE_FILE.parent)}", self.lines)
        own = {match[1] for line in self.lines if (match := re.match(r"([A-Z_]+): ", line))}
        self.assertEqual(own, {"GATEWAY_LISTEN", "LOCALSTACK_HOST", "LOCALSTACK_AUTH_TOKEN"})

    def test_the_settings_mean_the_same_to_compose_and_to_the_process(self) -> None:
        # Compose takes quotes off and replaces variables; the process takes every character.
        for name, value in localstack.settings().items():
            self.assertRegex(f"{name}={value}", r"^[A-Z0-9_]+=[a-z0-9.]+$")

    def test_compose_takes_the_file(self) -> None:
        config = self.config()
        service = config["services"]["localstack"]
        self.assertEqual(
            [(port["host_ip"], port["published"], port["target"]) for port in service["ports"]],
            [("127.0.0.1", "4577", 4577)],
        )
        self.assertLessEqual(localstack.settings().items(), service["environment"].items())
        self.assertEqual(service["environment"]["LOCALSTACK_HOST"], "127.0.0.1:4577")

    def config(self) -> dict[str, Any]:
        if not docker.has_compose():
            print("NOT CHECKED: compose.yaml by Docker Compose, which is not here", file=sys.stderr)
            self.skipTest("no Docker Compose")
        result = subprocess.run(
            ["docker", "compose", "--file", str(COMPOSE_FILE), "config", "--format", "json"],
            env=os.environ | {"LOCALSTACK_PORT": "4577"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        document: dict[str, Any] = json.loads(result.stdout)
        return document


if __name__ == "__main__":
    unittest.main()
