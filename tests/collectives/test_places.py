"""Where files about a cluster are looked for."""

from pathlib import Path

from doubletime.collectives.places import hosts_path, profile_path, table_path


def test_places():
    assert profile_path({"DOUBLETIME_PROFILE": "/x/mine.toml"}) == Path("/x/mine.toml")
    configured = profile_path({"XDG_CONFIG_HOME": "/etc/me"})
    assert configured == Path("/etc/me/doubletime/profile.toml")
    assert profile_path({}) == Path("~/.config/doubletime/profile.toml").expanduser()
    assert table_path(configured) == Path("/etc/me/doubletime/profile.table.toml")
    assert hosts_path(configured) == Path("/etc/me/doubletime/profile.hosts.toml")
