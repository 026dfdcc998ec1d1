"""Hosts that let us in, or do not, and how their login shells behave."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from doubletime.cluster.doctor.facts import Refused, Survey
from doubletime.cluster.doctor.finding import Finding, Severity
from doubletime.cluster.ssh import Trouble

_NOT_STARTED = (
    "no rank can be started there: launchers log in by ssh, and nobody is there to answer"
)
_GUARD = "case $- in *i*) ;; *) return ;; esac"


def refused(survey: Survey) -> Iterator[Finding]:
    """Hosts that no agent answers from."""
    for host, found in survey.refused.items():
        if survey.is_looped(host):
            continue  # it was this machine that was asked: `names` tells
        if found.trouble is not None:
            kind, what, remedy = _trouble(survey, host, found)
        elif not found.has_python:
            kind, what = "python-missing", f"there is no Python 3 on {host}"
            remedy = survey.at(host, "sudo apt-get install python3") + "   (or module load python)"
        else:
            kind, what, remedy = _shell(survey, host, found)
        yield Finding(kind, what, host, _NOT_STARTED, remedy)


def lost(survey: Survey) -> Iterator[Finding]:
    """Hosts that stopped answering during the visit."""
    for host, why in survey.lost.items():
        yield Finding(
            "host-lost",
            f"{host} let us in, then failed: {why}",
            host,
            "a host that does so in a job ends it",
            f"{survey.at(host, 'dmesg | tail -20')}, then ask again",
        )


def noise(survey: Survey) -> Iterator[Finding]:
    """Login shells that print something."""
    for facts in survey.hosts:
        if facts.noise:
            first = facts.noise.strip().splitlines()[0][:60]
            yield Finding(
                "shell-noise",
                f"the login shell of {facts.host} prints {first!r}",
                facts.host,
                "launchers, scp and rsync take it for a message of theirs, and fail or hang",
                f"put this line first in ~/.bashrc on {facts.host}: {_GUARD}",
                Severity.WARNING,
            )


def account(survey: Survey) -> Iterator[Finding]:
    """Users that differ from this machine's."""
    here = survey.here.record
    for facts in survey.hosts:
        there = facts.record
        if there["uid"] != here["uid"]:
            yield Finding(
                "uid-differs",
                f"on {facts.host} we are user {there['user']} with uid {there['uid']}, "
                f"here {here['user']} with uid {here['uid']}",
                facts.host,
                "in a shared folder files belong to numbers: ranks cannot read or overwrite "
                "each other's checkpoints",
                f"on {facts.host}: sudo usermod -u {here['uid']} {there['user']}",
            )
        elif there["user"] != here["user"]:
            yield Finding(
                "user-differs",
                f"on {facts.host} we are user {there['user']}, here {here['user']}",
                facts.host,
                "home folders, and with them settings and environments, lie under other paths",
                f"on {facts.host}: sudo usermod -l {here['user']} {there['user']}, or a user "
                f"{here['user']} with uid {here['uid']} on all hosts",
                Severity.WARNING,
            )


def _trouble(survey: Survey, host: str, found: Refused) -> tuple[str, str, str]:
    """Kind, what, remedy."""
    login = survey.ssh_lines.get(host, f"ssh {host}")
    file = shlex.quote(survey.known_hosts.get(host, "~/.ssh/known_hosts"))
    scan = f"ssh-keyscan -H {host} >> {file}"
    said = found.reply.stderr.decode(errors="replace").strip().splitlines()
    here = survey.here.record["hostname"]
    if found.trouble is Trouble.TIMEOUT and found.is_inside:
        return (
            "shell-hangs",
            f"{host} lets us in, but its login shell runs nothing for {found.reply.time_s:.0f} s",
            f"{login} -v true; the first line of ~/.bashrc on {host} may be {_GUARD}; what hangs "
            f"there since, end it there: pkill -f doubletime-doctor",
        )
    if found.is_locked:
        return (
            "passphrase-asked",
            f"the key that {host} accepts is locked by a passphrase, which nobody is there to type",
            "eval $(ssh-agent) && ssh-add",
        )
    answers = {
        Trouble.NAME: (
            "name-unknown",
            f"the name {host} does not resolve on {here}, this machine",
            f"echo 'ADDRESS {host}' | sudo tee -a /etc/hosts   (its address for ADDRESS), "
            "or correct the name in the hostfile",
        ),
        Trouble.UNREACHABLE: (
            "host-unreachable",
            f"no way leads to {host}: {said[-1] if said else 'no route to host'}",
            f"ip route get $(getent hosts {host}); is {host} switched on, and its address right?",
        ),
        Trouble.TIMEOUT: (
            "host-silent",
            f"{host} does not answer within {found.reply.time_s:.0f} s: it is off, cut off, or its "
            "firewall drops ssh",
            f"ping -c 3 {host}; {login} -v true   (tells where it stops)",
        ),
        Trouble.REFUSED: (
            "sshd-not-running",
            f"{host} is there, but nothing listens on its ssh port: sshd is not running",
            f"on {host}: sudo systemctl enable --now ssh   (sshd on Red Hat's kind)",
        ),
        Trouble.CLOSED: (
            "sshd-closes",
            f"the sshd of {host} closes the connection before anybody logs in",
            f"on {host}: sudo journalctl -u ssh -n 20   (MaxStartups, DenyUsers, hosts.deny)",
        ),
        Trouble.HOST_KEY_UNKNOWN: (
            "host-key-unknown",
            f"the host key of {host} is not known here, and nobody is there to answer yes",
            f"{scan}   (doubletime doctor --fix does it)",
        ),
        Trouble.HOST_KEY_CHANGED: (
            "host-key-changed",
            f"the host key of {host} is another than {file} knows: it was set up anew, "
            "or it is another machine",
            f"once you know why: ssh-keygen -f {file} -R {host} && {scan}",
        ),
        Trouble.PASSWORD: (
            "password-asked",
            f"{host} asks for a password: it knows none of our keys",
            f"test -e ~/.ssh/id_ed25519 || ssh-keygen -t ed25519 -N '' -f ~/.ssh/id_ed25519; "
            f"ssh-copy-id {host}",
        ),
        Trouble.KEY_REFUSED: (
            "key-refused",
            f"{host} accepts none of our keys, and no password either",
            f"append ~/.ssh/id_ed25519.pub to ~/.ssh/authorized_keys on {host}; "
            f"on {host}: chmod 700 ~ ~/.ssh && chmod 600 ~/.ssh/authorized_keys",
        ),
    }
    other = (
        "ssh-fails",
        f"ssh to {host} fails: {said[-1] if said else 'it says nothing'}",
        f"{login} -v true",
    )
    return answers.get(found.trouble or Trouble.OTHER, other)


def _shell(survey: Survey, host: str, found: Refused) -> tuple[str, str, str]:
    reply = found.reply
    said = (reply.stderr or reply.stdout).decode(errors="replace").strip().splitlines()
    end = f": {said[-1][:100]}" if said else ""
    login = survey.ssh_lines.get(host, f"ssh {host}")
    return (
        "shell-fails",
        f"the login shell of {host} ends with exit code {reply.exit_code} "
        f"before it runs anything{end}",
        f"{login} 'echo here'; if it prints nothing, mend ~/.bashrc on {host}: its first line may "
        f"be {_GUARD}",
    )
