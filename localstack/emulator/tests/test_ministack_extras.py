"""The pure parts of what is added to MiniStack."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "ministack_extras"))

import mapping
from gateway_context import substitute


class MappingTest(unittest.TestCase):
    def setUp(self) -> None:
        self.request = mapping.Request(
            path={"id": "upload_1"},
            query={"limit": "2"},
            headers={"content-type": "a/b"},
            context={"requestId": "r", "authorizer": {"tenant": "t/1", "count": 3}},
        )

    def test_parameters_fill_path_query_and_headers(self) -> None:
        mapped = mapping.map_request(
            {
                "integration.request.path.upload": "method.request.path.id",
                "integration.request.path.tenant": "context.authorizer.tenant",
                "integration.request.path.none": "context.authorizer.none",
                "integration.request.querystring.max": "method.request.querystring.limit",
                "integration.request.header.Content-Type": "method.request.header.Content-Type",
                "integration.request.header.x-amz-acl": "'private'",
            },
            self.request,
        )
        self.assertEqual(mapped.path, {"upload": "upload_1", "tenant": "t/1"})
        self.assertEqual(mapped.query, {"max": "2"})
        self.assertEqual(mapped.headers, {"content-type": "a/b", "x-amz-acl": "private"})
        self.assertEqual(mapped.fill("b/{tenant}/{upload}/{none}"), "b/t%2F1/upload_1/{none}")

    def test_response_headers_come_from_the_answer_and_the_context(self) -> None:
        headers = mapping.map_response_headers(
            {
                "method.response.header.x-request-id": "context.requestId",
                "method.response.header.x-tag": "integration.response.header.ETag",
                "method.response.header.x-none": "integration.response.header.none",
            },
            self.request,
            {"etag": "e"},
        )
        self.assertEqual(headers, {"x-request-id": "r", "x-tag": "e"})

    def test_only_text_counts_as_a_value(self) -> None:
        for source in ("context.authorizer.count", "context.authorizer", "context.none.x", "nonsense"):
            self.assertIsNone(self.request.value(source))


class GatewayContextTest(unittest.TestCase):
    def test_variables_of_the_authorizer_are_put_in(self) -> None:
        body = '{"m":"$context.authorizer.message","c":"${context.authorizer.code}","n":"$context.authorizer.none"}'
        self.assertEqual(substitute(body, {"message": "No.", "code": "c1"}), '{"m":"No.","c":"c1","n":""}')


if __name__ == "__main__":
    unittest.main()
