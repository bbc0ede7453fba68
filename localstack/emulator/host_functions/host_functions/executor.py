"""`LAMBDA_RUNTIME_EXECUTOR=host`: one process of the package's `bootstrap` an execution environment.

LocalStack's own machinery does the rest: concurrency, keep-alive, event source mappings, rules, log groups.
There is no sandbox: a function runs as the user that runs LocalStack, and its memory is not limited.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from localstack import config
from localstack.services.lambda_.invocation.executor_endpoint import StatusErrorException
from localstack.services.lambda_.invocation.lambda_models import FunctionVersion, InvocationResult
from localstack.services.lambda_.invocation.plugins import RuntimeExecutorPlugin
from localstack.services.lambda_.invocation.runtime_executor import LambdaRuntimeException, RuntimeExecutor

from .environment import function_environment
from .logs import LogBuffer, peak_memory_mb, report
from .processes import spawner
from .runtime_api import Invocation, RuntimeApi, error_document

LOG = logging.getLogger(__name__)

_WAIT_S = 0.02
_GRACE_S = 0.5
_HOST = "127.0.0.1"


class HostExecutor(RuntimeExecutor):
    """One execution environment."""

    def __init__(self, id: str, function_version: FunctionVersion) -> None:
        super().__init__(id=id, function_version=function_version)
        self._api = RuntimeApi()
        self._logs = LogBuffer()
        self._environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def get_address(self) -> str:
        return _HOST

    def get_endpoint_from_executor(self) -> str:
        return _HOST

    def get_runtime_endpoint(self) -> str:
        return f"http://{self._api.address}"

    def get_logs(self) -> str:
        return self._logs.text()

    def start(self, env_vars: dict[str, str]) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="function-")
        self._environment = function_environment(
            env_vars, runtime_api=self._api.address, code=str(self._code), scratch=self._scratch.name
        )
        self._start_process()

    def stop(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            _signal_group(process, signal.SIGTERM)
            try:
                process.wait(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                pass
        self._kill()
        self._api.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def invoke(self, payload: dict[str, str]) -> InvocationResult:
        if self._process is None or self._process.poll() is not None:
            # The process of the last event exited or was killed for being late.
            self._start_process()
        timeout_s = float(self.function_version.config.timeout or 3)
        invocation = Invocation(
            request_id=payload["invoke-id"],
            arn=payload["invoked-function-arn"],
            payload=payload["payload"].encode(),
            deadline_ms=int((time.time() + timeout_s) * 1000),
            trace_id=payload.get("trace-id") or "",
        )
        self._logs.begin(
            f"START RequestId: {invocation.request_id} Version: {self.function_version.id.qualifier}\n"
        )
        started = time.perf_counter()
        self._api.submit(invocation)
        status = self._await_answer(invocation, timeout_s)
        duration_ms = (time.perf_counter() - started) * 1000
        memory_mb = peak_memory_mb(self._process.pid) if self._process else 0
        logs = self._logs.end() + report(
            invocation.request_id,
            duration_ms=duration_ms,
            memory_mb=memory_mb,
            memory_size_mb=self.function_version.config.memory_size,
            status=status,
        )
        return InvocationResult(
            request_id=invocation.request_id,
            payload=invocation.answer,
            is_error=invocation.is_error,
            logs=logs,
        )

    @classmethod
    def prepare_version(cls, function_version: FunctionVersion) -> None:
        runtime = function_version.config.runtime or "an image"
        if not runtime.startswith("provided"):
            raise LambdaRuntimeException(f"the host executor runs provided.* packages only, not {runtime}")
        if function_version.config.code:
            function_version.config.code.prepare_for_execution()

    @classmethod
    def cleanup_version(cls, function_version: FunctionVersion) -> None:
        """Keeps the unpacked code: LocalStack removes it with the function."""

    @property
    def _name(self) -> str:
        return self.function_version.id.function_name

    @property
    def _code(self) -> Path:
        return Path(self.function_version.config.code.get_unzipped_code_location())

    def _start_process(self) -> None:
        bootstrap = self._code / "bootstrap"
        if not bootstrap.is_file():
            raise StatusErrorException(
                "no bootstrap",
                payload=error_document(
                    "Runtime.InvalidEntrypoint", f"no bootstrap in the package of {self._name}"
                ),
            )
        bootstrap.chmod(0o755)
        self._api.reset()
        started = time.perf_counter()
        self._process = spawner().spawn(
            args=[str(bootstrap)],
            cwd=str(self._code),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._pump = threading.Thread(target=self._logs.pump, args=(self._process.stdout,), daemon=True)
        self._pump.start()
        self._await_init(self._process)
        LOG.info(
            "function %s: process %s ready in %.0f ms",
            self._name,
            self._process.pid,
            (time.perf_counter() - started) * 1000,
        )

    def _await_init(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + float(config.LAMBDA_RUNTIME_ENVIRONMENT_TIMEOUT)
        while not self._api.settled.wait(_WAIT_S):
            if process.poll() is not None:
                self._join_pump()
                LOG.warning(
                    "function %s: bootstrap ended with %s:\n%s",
                    self._name,
                    process.returncode,
                    self.get_logs(),
                )
                raise StatusErrorException("init failed", payload=_exit_error("", process.returncode))
            if time.monotonic() > deadline:
                self._kill()
                raise LambdaRuntimeException(
                    f"the bootstrap of {self._name} did not ask for an event in time"
                )
        if self._api.init_error is not None:
            self._kill()
            raise StatusErrorException("init failed", payload=self._api.init_error)

    def _await_answer(self, invocation: Invocation, timeout_s: float) -> str:
        """Waits for the answer, the end of the process or the timeout; returns the status of the report."""
        process = self._process
        assert process is not None, "invoke starts the process"
        deadline = time.monotonic() + timeout_s
        while not invocation.answered.wait(_WAIT_S):
            if process.poll() is not None and not invocation.answered.wait(_WAIT_S):
                self._api.abandon()
                self._join_pump()
                invocation.fail(_exit_error(invocation.request_id, process.returncode))
                return "error"
            if time.monotonic() > deadline:
                self._api.abandon()
                self._kill()
                invocation.fail(
                    error_document(
                        "Sandbox.Timedout",
                        f"RequestId: {invocation.request_id} Error: Task timed out after {timeout_s:.2f} seconds",
                    )
                )
                return "timeout"
        return ""

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            _signal_group(process, signal.SIGKILL)
            process.wait()
            self._join_pump()

    def _join_pump(self) -> None:
        if self._pump is not None:
            self._pump.join(timeout=1)


class HostExecutorPlugin(RuntimeExecutorPlugin):
    """The plugin's name is the value of LAMBDA_RUNTIME_EXECUTOR."""

    name = "host"

    def load(self, *args: object, **kwargs: object) -> type[HostExecutor]:
        return HostExecutor


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The process leads its own session, so that whatever it started is in its group.
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def _exit_error(request_id: str, code: int) -> bytes:
    reason = f"signal: {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    prefix = f"RequestId: {request_id} " if request_id else ""
    return error_document("Runtime.ExitError", f"{prefix}Error: Runtime exited with error: {reason}")
