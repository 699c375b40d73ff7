from pathlib import Path

from atoll.server.process.sockets import LINK, SocketFolder


def test_the_folder_is_private_and_its_paths_are_short(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    made = SocketFolder(deep)
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert len(made.address("worker-63").removeprefix("unix:")) < 107
    made.remove()
    assert not made.path.exists()
    assert list(deep.iterdir()) == []
    made.remove()


def test_what_a_killed_server_left_goes_at_the_next_start(tmp_path: Path) -> None:
    killed = SocketFolder(tmp_path)
    (killed.path / "coordinator.sock").touch()
    again = SocketFolder(tmp_path)
    assert not killed.path.exists()
    assert (tmp_path / LINK).readlink() == again.path
    again.remove()


def test_a_link_that_leads_elsewhere_removes_nothing_there(tmp_path: Path) -> None:
    mine = tmp_path / "precious"
    mine.mkdir()
    (tmp_path / LINK).symlink_to(mine)
    made = SocketFolder(tmp_path)
    assert mine.is_dir()
    made.remove()
    assert mine.is_dir()
