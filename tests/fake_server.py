"""A program around the server section, with a made-up memory: what the end-to-end tests start.

FAKE_* variables make it misbehave: FAKE_PRINT (stray prints), FAKE_SLOW (seconds a search takes),
FAKE_BROKEN (the memory cannot be opened), FAKE_SCRIPT_GRACE (seconds that a script is waited for).
"""

import os
import sys

from server_fakes import open_fake_recall

import code_memory

if __name__ == "__main__":
    if grace := os.environ.get("FAKE_SCRIPT_GRACE"):
        code_memory.SCRIPT_GRACE_SECONDS = float(grace)
    sys.exit(code_memory.serve(open_fake_recall))
