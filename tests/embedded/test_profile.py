"""`korvet serve --profile`: a broker under load writes its profile when it stops."""

from pathlib import Path

from tests.support.polling import until
from tests.support.processes import cpu_seconds
from tests.support.servers import KorvetServer
from tests.support.wire import RawConnection

BUSY_S = 0.3


def test_a_profile_is_written_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "profile"
    with KorvetServer("--profile", str(path)) as server:
        before_s = cpu_seconds(server.process.pid)
        with RawConnection(server.host, server.port) as connection:

            def worked() -> bool:
                assert all(connection.works() for _ in range(500))
                return cpu_seconds(server.process.pid) > before_s + BUSY_S

            until(worked, 60, "the broker used some CPU time")
        assert server.stop() == 0
        lines = path.read_text().splitlines()
        samples = sum(int(line.rsplit(" ", 1)[1]) for line in lines)
        # Some kernels sample only every 10 ms.
        assert samples >= BUSY_S * 50
        assert any("korvet.server.connection." in line for line in lines)
