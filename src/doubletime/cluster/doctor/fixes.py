"""What the doctor may mend by itself: our own file of host keys, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from doubletime.cluster.doctor.finding import Finding
from doubletime.cluster.ssh import Ssh, settings

_SCAN_S = 10


def mend(findings: Iterable[Finding], ssh: Ssh) -> list[str]:
    """Mend what is safe to mend: host keys that are not known yet.

    A key that has changed is left alone: it may be another machine.

    Returns:
        What was done, or why not, a line each.
    """
    return [
        _learn_key(finding.host, ssh) for finding in findings if finding.kind == "host-key-unknown"
    ]


def _learn_key(host: str, ssh: Ssh) -> str:
    found = settings(ssh, host)
    file = Path(found.known_hosts).expanduser()
    # By the name that ssh looks for: a host alias's key stands under its HostName.
    command = ["ssh-keyscan", "-T", str(_SCAN_S), "-p", str(found.port), "-H", found.hostname]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SCAN_S * 2,
            check=False,
        )
        keys = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
        if not keys:
            return f"{host}: {' '.join(command)} finds no key: {done.stderr.strip()[:120]}"
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        old = file.read_text() if file.exists() else ""
        join = "" if not old or old.endswith("\n") else "\n"
        with file.open("a") as known:
            known.write(join + "\n".join(keys) + "\n")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{host}: its host key could not be added to {file}: {error}"
    kinds = ", ".join(sorted(line.split()[1] for line in keys))
    return f"{host}: added its host keys ({kinds}) to {file}, as ssh-keyscan tells them"
