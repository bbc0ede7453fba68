"""The pure parts of the LocalStack plugin."""

from __future__ import annotations

import json
import sys
import threading
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "host_functions"))

from host_functions.environment import function_environment
from host_functions.logs import LogBuffer, report
from host_functions.media import is_binary
from host_functions.policy import InvalidAnswer, Verdict, judge
from host_functions.processes import spawner
from host_functions.runtime_api import ANSWER_BYTES_MAX, Invocation, RuntimeApi
from host_functions.tokens import KEPT_S, TokenMemory, TokenReused
from host_functions.variables import customised_response, mapped_value, substitute, with_error

ARN = "arn:aws:execute-api:us-east-1:1:api/v1/POST/uploads/upload_1/parts"


def answer(*statements: dict[str, Any], **extra: Any) -> dict[str, Any]:
    return {
        "principalId": "p",
        "policyDocument": {"Version": "2012-10-17", "Statement": list(statements)},
    } | extra


def statement(effect: str, resource: Any = ARN, action: Any = "execute-api:Invoke") -> dict[str, Any]:
    return {"Effect": effect, "Action": action, "Resource": resource}


class PolicyTest(unittest.TestCase):
    def test_a_policy_decides_by_its_statements(self) -> None:
        for statements, expected in (
            ([statement("Allow")], Verdict.ALLOWED),
            ([statement("Allow", "arn:aws:execute-api:*:api/v1/POST/*")], Verdict.ALLOWED),
            ([statement("Allow", ["nothing", "*"], ["s3:GetObject", "execute-api:*"])], Verdict.ALLOWED),
            ([statement("Deny"), statement("Allow")], Verdict.DENIED),
            ([statement("Allow"), statement("Deny", "*")], Verdict.DENIED),
            ([statement("Allow", ARN + "x")], Verdict.NOT_MENTIONED),
            ([statement("Allow", action="s3:*")], Verdict.NOT_MENTIONED),
            ([], Verdict.NOT_MENTIONED),
        ):
            self.assertEqual(judge(answer(*statements), ARN).verdict, expected, statements)

    def test_the_context_is_strings_with_the_principal(self) -> None:
        judged = judge(answer(statement("Allow"), context={"a": "x", "b": 7, "c": True, "d": None}), ARN)
        self.assertEqual(judged.context, {"a": "x", "b": "7", "c": "true", "principalId": "p"})

    def test_what_is_no_authorizer_answer_is_refused(self) -> None:
        for wrong in (
            None,
            [],
            {"principalId": "p"},
            {"policyDocument": {}},
            answer(statement("Allow"), context={"a": ["list"]}),
            answer(statement("Allow"), context="text"),
        ):
            with self.assertRaises(InvalidAnswer):
                judge(wrong, ARN)


class VariablesTest(unittest.TestCase):
    def test_context_variables_are_put_in_as_they_are(self) -> None:
        context = with_error(
            {"authorizer": {"message": "No."}, "requestId": "r"}, message=None, response_type="T"
        )
        for template, expected in (
            ('{"m":"$context.authorizer.message"}', '{"m":"No."}'),
            ("${context.requestId}!", "r!"),
            ("$context.error.messageString", "null"),
            ("[$context.authorizer.none][$context.authorizer]", "[][]"),
            ("$input.body $context", "$input.body $context"),
        ):
            self.assertEqual(substitute(template, context), expected)

    def test_headers_come_from_text_requests_and_context(self) -> None:
        context = {"requestId": "r"}
        for source, expected in (
            ("'1'", "1"),
            ("context.requestId", "r"),
            ("method.request.header.X-Id", "7"),
            ("method.request.header.none", None),
            ("context.none", None),
            ("nonsense", None),
        ):
            self.assertEqual(mapped_value(source, context=context, headers={"x-id": "7"}), expected)

    def test_a_type_falls_back_to_the_default_of_its_class(self) -> None:
        responses = {"UNAUTHORIZED": {"id": 1}, "DEFAULT_4XX": {"id": 4}, "DEFAULT_5XX": {"id": 5}}
        for name, status, expected in (
            ("UNAUTHORIZED", "401", {"id": 1}),
            ("ACCESS_DENIED", "403", {"id": 4}),
            ("AUTHORIZER_FAILURE", "500", {"id": 5}),
            ("REQUEST_TOO_LARGE", "413", None),
        ):
            self.assertEqual(customised_response(name, status, responses), expected)
        self.assertIsNone(customised_response("ACCESS_DENIED", "403", {}))


class MediaTest(unittest.TestCase):
    def test_binary_media_types_match_by_pattern(self) -> None:
        for media_type, patterns, expected in (
            ("application/json", ["*/*"], True),
            (None, ["*/*"], True),
            ("multipart/form-data; boundary=x", ["multipart/form-data"], True),
            ("image/png, text/html", ["image/*"], True),
            ("text/html, image/png", ["image/*"], False),
            ("text/plain", [], False),
            (None, ["image/*"], False),
            ("nonsense", ["image/*"], False),
        ):
            self.assertEqual(is_binary(media_type, patterns), expected, (media_type, patterns))


class TokensTest(unittest.TestCase):
    def request(self, token: str, value: str) -> dict[str, Any]:
        return {"ClientRequestToken": token, "TransactItems": [{"Put": {"Item": {"pk": {"S": value}}}}]}

    def test_a_token_is_done_once_for_ten_minutes(self) -> None:
        memory = TokenMemory()
        self.assertFalse(memory.is_done("1", self.request("t", "a"), 0))
        memory.remember("1", self.request("t", "a"), 0)
        self.assertTrue(memory.is_done("1", self.request("t", "a"), KEPT_S - 1))
        self.assertFalse(memory.is_done("2", self.request("t", "a"), 1))
        self.assertFalse(memory.is_done("1", self.request("t", "a"), KEPT_S))

    def test_a_token_with_other_items_is_refused(self) -> None:
        memory = TokenMemory()
        memory.remember("1", self.request("t", "a"), 0)
        with self.assertRaises(TokenReused):
            memory.is_done("1", self.request("t", "b"), 1)


class EnvironmentTest(unittest.TestCase):
    def test_a_function_sees_its_own_variables_only(self) -> None:
        environment = function_environment(
            {"NIGHTSHIFT_TABLE": "t", "SIZE": 7, "LOCALSTACK_RUNTIME_ID": "x", "HOME": "/var/task"},
            runtime_api="127.0.0.1:1",
            code="/code",
            scratch="/scratch",
        )
        self.assertEqual(
            environment,
            {
                "AWS_LAMBDA_RUNTIME_API": "127.0.0.1:1",
                "HOME": "/scratch",
                "LAMBDA_TASK_ROOT": "/code",
                "NIGHTSHIFT_TABLE": "t",
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "SIZE": "7",
                "TMPDIR": "/scratch",
            },
        )


class LogsTest(unittest.TestCase):
    def test_lines_of_an_event_are_kept_apart(self) -> None:
        logs = LogBuffer()
        logs.add("init\n")
        logs.begin("START\n")
        logs.add("work\n")
        self.assertEqual(logs.end(), "START\nwork\n")
        logs.add("later\n")
        self.assertEqual(logs.text(), "init\nwork\nlater\n")

    def test_a_report_names_what_went_wrong(self) -> None:
        lines = report("r", duration_ms=1.5, memory_mb=3, memory_size_mb=128, status="timeout")
        self.assertTrue(lines.startswith("END RequestId: r\nREPORT RequestId: r\tDuration: 1.50 ms"))
        self.assertTrue(lines.endswith("Max Memory Used: 3 MB\tStatus: timeout\n"))


class RuntimeApiTest(unittest.TestCase):
    def setUp(self) -> None:
        self.api = RuntimeApi()
        self.base = f"http://{self.api.address}/2018-06-01/runtime"
        self.addCleanup(self.api.close)

    def invocation(self) -> Invocation:
        return Invocation("r-1", "arn", b'{"a":1}', 42, "trace")

    def post(self, path: str, body: bytes) -> int:
        request = urllib.request.Request(self.base + path, data=body, method="POST")
        try:
            with urllib.request.urlopen(request) as answered:
                return int(answered.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def take(self) -> tuple[bytes, dict[str, str]]:
        with urllib.request.urlopen(f"{self.base}/invocation/next") as event:
            return event.read(), dict(event.headers)

    def test_an_event_goes_to_the_runtime_and_its_answer_comes_back(self) -> None:
        invocation = self.invocation()
        self.api.submit(invocation)
        body, headers = self.take()
        self.assertTrue(self.api.settled.is_set())
        self.assertEqual(body, b'{"a":1}')
        self.assertEqual(headers["Lambda-Runtime-Aws-Request-Id"], "r-1")
        self.assertEqual(headers["Lambda-Runtime-Deadline-Ms"], "42")
        self.assertEqual(self.post("/invocation/other/response", b"1"), 400)
        self.assertEqual(self.post("/invocation/r-1/response", b'{"ok":1}'), 202)
        self.assertTrue(invocation.answered.wait(5))
        self.assertEqual((invocation.answer, invocation.is_error), (b'{"ok":1}', False))
        self.assertEqual(self.post("/invocation/r-1/response", b"again"), 400)

    def test_an_error_is_an_error(self) -> None:
        invocation = self.invocation()
        self.api.submit(invocation)
        self.take()
        self.assertEqual(self.post("/invocation/r-1/error", b'{"errorMessage":"x"}'), 202)
        self.assertTrue(invocation.answered.wait(5) and invocation.is_error)

    def test_an_answer_over_lambdas_limit_is_an_error(self) -> None:
        invocation = self.invocation()
        self.api.submit(invocation)
        self.take()
        self.assertEqual(self.post("/invocation/r-1/response", b"x" * (ANSWER_BYTES_MAX + 1)), 413)
        self.assertTrue(invocation.answered.wait(5) and invocation.is_error)
        self.assertEqual(json.loads(invocation.answer)["errorType"], "Function.ResponseSizeTooLarge")

    def test_a_failed_init_is_reported(self) -> None:
        self.assertEqual(self.post("/init/error", b'{"errorMessage":"no table"}'), 202)
        self.assertTrue(self.api.settled.is_set())
        self.assertEqual(self.api.init_error, b'{"errorMessage":"no table"}')

    def test_other_paths_are_unknown(self) -> None:
        self.assertEqual(self.post("/invocation/r-1/other", b""), 404)


class SpawnerTest(unittest.TestCase):
    def test_processes_are_started_by_a_thread_that_stays(self) -> None:
        process = spawner().spawn(args=["/bin/true"])
        self.assertEqual(process.wait(), 0)
        self.assertIn("function-spawner", [thread.name for thread in threading.enumerate()])

    def test_what_cannot_be_started_raises(self) -> None:
        with self.assertRaises(FileNotFoundError):
            spawner().spawn(args=["/nonexistent/bootstrap"])


if __name__ == "__main__":
    unittest.main()
