"""A program around the server section, with a made-up memory: what the end-to-end tests start.

FAKE_* variables make it misbehave: FAKE_PRINT (stray prints), FAKE_SLOW (seconds a search takes),
FAKE_BROKEN (the memory cannot be opened).
"""

import sys

from server_fakes import open_fake_recall

from code_memory import serve

if __name__ == "__main__":
    sys.exit(serve(open_fake_recall))
