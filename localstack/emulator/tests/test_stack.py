"""What the stack decides without starting anything large."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from emulator.stack import cli, ports, pythons, service
from emulator.stack.failure import EXIT_UNAVAILABLE, StackFailure, Unavailable
from emulator.stack.paths import HOST_FUNCTIONS, State
from emulator.stack.processes import Children, clean_environment, wait_until


class PortsTest(unittest.TestCase):
    def test_a_taken_port_is_refused(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with self.assertRaisesRegex(StackFailure, f"port {port} is in use"):
                ports.check_free(port)
            self.assertTrue(ports.accepts(port))
        ports.check_free(port)

    def test_loopback_is_told_from_other_addresses(self) -> None:
        for address, expected in (
            ("0100007F:11D6", True),
            ("00000000:11D6", False),
            ("0B01A8C0:11D6", False),
            ("00000000000000000000000001000000:11D6", True),
            ("0000000000000000FFFF00000100007F:11D6", True),
            ("00000000000000000000000000000000:11D6", False),
        ):
            self.assertEqual(ports.is_loopback(address), expected, address)

    def test_a_process_that_listens_on_all_addresses_is_found(self) -> None:
        with socket.create_server(("127.0.0.1", 0)):
            ports.check_loopback_only([os.getpid()])
            with socket.create_server(("0.0.0.0", 0)), self.assertRaisesRegex(StackFailure, "must stay on"):
                ports.check_loopback_only([os.getpid()])


class PythonsTest(unittest.TestCase):
    def python(self, folder: Path, version: str) -> None:
        path = folder / f"versions/{version}/bin/python{version.rpartition('.')[0]}"
        path.parent.mkdir(parents=True)
        major, minor, _ = version.split(".")
        path.write_text(f"#!/bin/sh\necho {major} {minor}\n")
        path.chmod(0o755)

    def test_a_python_under_pyenv_is_found_and_a_broken_shim_on_path_is_not(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            self.python(root, "3.11.7")
            self.python(root, "3.12.1")
            shim = root / "shims/python3.13"
            shim.parent.mkdir()
            shim.write_text("#!/bin/sh\nexit 127\n")
            shim.chmod(0o755)
            variables = {"PYENV_ROOT": name, "PATH": f"{shim.parent}:/usr/bin:/bin"}
            with mock.patch.dict(os.environ, variables):
                self.assertEqual(pythons.python_for_localstack(), root / "versions/3.12.1/bin/python3.12")

    def test_no_python_is_told_apart_from_failures(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            with mock.patch.dict(os.environ, {"PYENV_ROOT": name, "PATH": name}):
                with self.assertRaisesRegex(Unavailable, "needs Python 3.12") as raised:
                    pythons.python_for_localstack()
        self.assertEqual(raised.exception.exit_code, EXIT_UNAVAILABLE)

    def test_only_what_changed_is_installed_anew(self) -> None:
        plain = pythons.Requirements("x", ("a==1",))
        plugin = pythons.Requirements("x", ("a==1",), local=HOST_FUNCTIONS)
        self.assertEqual(plain.packages_digest(), plugin.packages_digest())
        self.assertNotEqual(plain.local_digest(), plugin.local_digest())
        newer = pythons.Requirements("x", ("a==2",), local=HOST_FUNCTIONS)
        self.assertNotEqual(newer.packages_digest(), plugin.packages_digest())
        self.assertEqual(newer.local_digest(), plugin.local_digest())


class ProcessesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.state = State(Path(folder.name))
        self.children = Children()
        self.addCleanup(self.children.stop)

    def start(self, code: str) -> int:
        child = self.children.start(
            "child",
            [sys.executable, "-c", code],
            env=clean_environment(self.state.root),
            log=self.state.log("child"),
            cwd=self.state.root,
            grace_s=0.1,
        )
        return child.pid

    def started(self) -> bool:
        return "ready" in self.state.log("child").read_text()

    def test_everything_ends_also_what_a_child_left_behind(self) -> None:
        pid = self.start(
            "import subprocess, sys, time\n"
            "orphan = subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True)\n"
            "print('ready', orphan.pid, flush=True)\n"
            "time.sleep(1000)"
        )
        wait_until(self.started, what="it", timeout_s=20, check=self.children.check)
        orphan = int(self.state.log("child").read_text().split()[1])
        self.children.stop()
        for gone in (pid, orphan):
            with self.assertRaises(ProcessLookupError):
                os.kill(gone, 0)

    def test_a_child_that_ignores_the_signal_is_killed(self) -> None:
        pid = self.start(
            "import signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('ready', flush=True)\n"
            "time.sleep(1000)"
        )
        wait_until(self.started, what="it", timeout_s=20, check=self.children.check)
        self.children.stop()
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_child_that_ends_is_reported_with_its_log(self) -> None:
        self.start("print('no table'); raise SystemExit(4)")
        with self.assertRaisesRegex(StackFailure, "(?s)child ended with 4:.*no table"):
            wait_until(lambda: False, what="it", timeout_s=20, check=self.children.check)

    def test_children_see_nothing_of_the_hosts_environment(self) -> None:
        with mock.patch.dict(os.environ, {"AWS_PROFILE": "production", "SECRET": "x"}):
            environment = clean_environment(Path("/home"), EXTRA="1")
        self.assertNotIn("AWS_PROFILE", environment)
        self.assertNotIn("SECRET", environment)
        self.assertEqual((environment["HOME"], environment["EXTRA"]), ("/home", "1"))


class ServiceTest(unittest.TestCase):
    def command(self, folder: str, body: str) -> Path:
        path = Path(folder) / "nightshift"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def test_a_key_is_made_with_the_deployments_environment_alone(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = self.command(
                folder, 'echo "{\\"api_key\\":\\"$1-$2-$NIGHTSHIFT_TABLE-$AWS_PROFILE\\"}"'
            )
            environment = service.client_environment(
                "http://127.0.0.1:1", "us-east-1", {"NIGHTSHIFT_TABLE": "t"}
            )
            with mock.patch.dict(os.environ, {"AWS_PROFILE": "production"}):
                self.assertEqual(service.make_key(command, environment), "deploy-key-t-")

    def test_a_failed_key_says_why(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = self.command(folder, "echo no table >&2; exit 1")
            with self.assertRaisesRegex(StackFailure, "(?s)ended with 1:.*no table"):
                service.make_key(command, {})

    def test_a_missing_command_is_named(self) -> None:
        with self.assertRaisesRegex(StackFailure, "is no file"):
            service.find_nightshift(Path("/nonexistent"))


class CommandTest(unittest.TestCase):
    def test_down_of_no_stack_is_fine(self) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(cli.main(["down", "--state", folder]), 0)
        self.assertIn("no stack is up", said.getvalue())

    def test_down_of_a_stack_that_was_killed_forgets_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
            summary = State(Path(folder).resolve()).summary
            summary.write_text(json.dumps({"pid": os.getpid()}))
            self.assertEqual(cli.main(["down", "--state", folder]), 0)
            self.assertFalse(summary.exists())
        self.assertIn("is gone already", said.getvalue())


class StateTest(unittest.TestCase):
    def test_a_new_run_starts_without_what_an_earlier_one_left(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            state = State(Path(folder))
            state.log("gate").write_text("old")
            state.summary.write_text("{}")
            state.clear()
            self.assertFalse(state.summary.exists())
            self.assertFalse((state.root / "logs").exists())


if __name__ == "__main__":
    unittest.main()
