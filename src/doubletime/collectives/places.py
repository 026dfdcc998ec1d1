"""Where what is known of a cluster is kept: its profile, and files beside it; imports next to nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PROFILE_VARIABLE = "DOUBLETIME_PROFILE"


def profile_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the profile is: `DOUBLETIME_PROFILE`, or profile.toml in the user's configuration folder."""
    named = environ.get(PROFILE_VARIABLE)
    if named:
        return Path(named).expanduser()
    home = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "doubletime" / "profile.toml"


def table_path(profile: Path) -> Path:
    """Where the decision table is: beside the profile, profile.table.toml beside profile.toml."""
    return profile.with_suffix(".table.toml")


def hosts_path(profile: Path) -> Path:
    """Where the doctor's record of hosts is: profile.hosts.toml beside profile.toml."""
    return profile.with_suffix(".hosts.toml")
