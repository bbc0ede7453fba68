"""Runs the acceptance checklist against a service with the official Python SDK that it is run with.

OPENAI_BASE_URL and OPENAI_API_KEY name a fresh service, NIGHTSHIFT_BIN the program. The service's limits are those
of tests/it/sdk.rs. Prints one line for each check and ends with 1 at the first difference.
"""

import openai

# The order of the imports is the order of the checks.
from python import lists  # noqa: F401
from python import answers, endings, files, refusals  # noqa: F401
from python.checklist import run_all

print(f"openai {openai.__version__}", flush=True)
run_all()
