"""The gate: what API Gateway and Lambda enforce and no emulator does, as a proxy in front of one.

It holds each request and answer whole, as API Gateway does, within the limits of `limits.py`.
"""
