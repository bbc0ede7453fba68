"""Plugins for LocalStack 4.14 on a machine without Docker. README.md says what each one adds.

Modules that import LocalStack (`executor`, `dynamodb`, `hooks`, `authorizer`, `responses`, `binary`) are loaded
by LocalStack through entry points. The others are pure and are tested without it.
"""
