"""A process that owns an embedded server: prints the URL and the server's pid, then waits to be killed."""

import signal
import sys

from korvet.embedded.server import EmbeddedServer

server = EmbeddedServer(sys.argv[1])
url = server.start()
sys.stdout.write(f"{url} {server.pid}\n")
sys.stdout.flush()
signal.pause()
