"""A cluster's profile: the α, β and γ that were measured on it, as `bench links` writes and others read it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubletime.collectives.cluster import Cluster
from doubletime.collectives.model import Link, Parameters
from doubletime.errors import DataError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KIND = "doubletime cluster profile"
_REMEDY = "doubletime bench links writes one"


@dataclass(frozen=True)
class Estimate:
    """A value that was measured, and the interval in which it lies with 95 % confidence."""

    value: float
    low: float
    high: float

    @classmethod
    def read(cls, table: Mapping[str, Any], name: str) -> Estimate:
        """From `name` and `name_interval` of a table; without the latter the value is taken as exact."""
        value = _number(table[name])
        low, high = table.get(f"{name}_interval", (value, value))
        return cls(value, _number(low), _number(high))

    def record(self, name: str) -> dict[str, Any]:
        """What `read` reads."""
        return {name: self.value, f"{name}_interval": [self.low, self.high]}


@dataclass(frozen=True)
class Level:
    """The links of one level, measured with both directions in use at once, as reductions use them.

    Attributes:
        alpha_s: seconds a round of a schedule takes without its bytes.
        beta_s_per_byte: seconds for each byte more.
        overhead_s: seconds a message keeps its way busy besides its bytes.
        residual: root of the mean square of what the fit leaves, as a share of the measured time.
        message_alpha_s: what a bare message takes without its bytes, in seconds.
        one_way_beta_s_per_byte: seconds for each byte where only one end sends.
    """

    alpha_s: Estimate
    beta_s_per_byte: Estimate
    overhead_s: float
    residual: float
    message_alpha_s: Estimate
    one_way_beta_s_per_byte: Estimate

    @property
    def link(self) -> Link:
        """What the model calculates with."""
        return Link(self.alpha_s.value, self.beta_s_per_byte.value, self.overhead_s)

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Level:
        """From a table of a profile; what only people read may be missing."""
        alpha, beta = Estimate.read(table, "alpha_s"), Estimate.read(table, "beta_s_per_byte")
        return cls(
            alpha,
            beta,
            _number(table.get("overhead_s", 0.0)),
            _number(table.get("residual", 0.0)),
            Estimate.read({"message_alpha_s": alpha.value, **table}, "message_alpha_s"),
            Estimate.read(
                {"one_way_beta_s_per_byte": beta.value, **table}, "one_way_beta_s_per_byte"
            ),
        )

    def record(self) -> dict[str, Any]:
        """What `read` reads."""
        return {
            **self.alpha_s.record("alpha_s"),
            **self.beta_s_per_byte.record("beta_s_per_byte"),
            "overhead_s": self.overhead_s,
            "residual": self.residual,
            **self.message_alpha_s.record("message_alpha_s"),
            **self.one_way_beta_s_per_byte.record("one_way_beta_s_per_byte"),
        }


@dataclass(frozen=True)
class Pair:
    """The link between two hosts, measured with both directions in use at once.

    Attributes:
        hosts: their names.
        alpha_s: what a bare message takes without its bytes, in seconds.
        beta_s_per_byte: seconds for each byte more.
        residual: see `Level`.
        slowdown: how many times as long as over a good link a byte takes, or a message where that
            stands out more; at least 1.
    """

    hosts: tuple[str, str]
    alpha_s: Estimate
    beta_s_per_byte: Estimate
    residual: float
    slowdown: float = 1.0

    @property
    def is_slow(self) -> bool:
        """Whether it is clearly slower than the others."""
        return self.slowdown > 1.0


@dataclass(frozen=True)
class Profile:
    """What was measured of a cluster.

    Attributes:
        cluster: which one.
        inside: between ranks of one host; None where no host had two.
        between: between hosts; None where there was one. Slow links are left out.
        gamma_s_per_byte: seconds to reduce a byte of one operand into another.
        pairs: every pair of hosts.
        date: when, in UTC, ISO 8601.
        doubletime: the version that measured.
    """

    cluster: Cluster
    inside: Level | None
    between: Level | None
    gamma_s_per_byte: Estimate
    pairs: tuple[Pair, ...]
    date: str
    doubletime: str

    def parameters(self, assumed: Parameters) -> Parameters:
        """What the model calculates with; what was not measured, from `assumed`."""
        return Parameters(
            self.inside.link if self.inside else assumed.inside,
            self.between.link if self.between else assumed.between,
            self.gamma_s_per_byte.value,
        )

    def text(self) -> str:
        """The profile as TOML, which `parse` reads."""
        import tomli_w

        levels = {"inside": self.inside, "between": self.between}
        whole = {
            "kind": KIND,
            **self.cluster.record(),
            "date": self.date,
            "doubletime": self.doubletime,
            **self.gamma_s_per_byte.record("gamma_s_per_byte"),
            **{name: level.record() for name, level in levels.items() if level is not None},
            "pair": [
                {
                    "hosts": list(pair.hosts),
                    **pair.alpha_s.record("alpha_s"),
                    **pair.beta_s_per_byte.record("beta_s_per_byte"),
                    "residual": pair.residual,
                    "slowdown": pair.slowdown,
                }
                for pair in self.pairs
            ],
        }
        return tomli_w.dumps(whole)


def read(file: Path) -> Profile:
    """The profile in a file.

    Raises:
        DataError: if the file is not there, or is not a profile; names what is wrong.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise DataError(
            f"the profile {file} cannot be read: {why}",
            "doubletime bench links --output FILE writes one",
        ) from error
    return parse(text, str(file))


def parse(text: str, name: str) -> Profile:
    """Read a profile.

    Args:
        text: what `Profile.text` wrote; a table [inside] or [between] by hand needs `alpha_s` and
            `beta_s_per_byte` only.
        name: of the file, for errors.

    Raises:
        DataError: if it is not a profile; names what is wrong.
    """
    try:
        whole = tomllib.loads(text)
        if whole.get("kind", KIND) != KIND:
            raise ValueError(f"it calls itself {whole['kind']!r}")
        return Profile(
            Cluster.read(whole),
            Level.read(whole["inside"]) if "inside" in whole else None,
            Level.read(whole["between"]) if "between" in whole else None,
            Estimate.read(whole, "gamma_s_per_byte"),
            tuple(_pair(table) for table in whole.get("pair", ())),
            str(whole.get("date", "")),
            str(whole.get("doubletime", "")),
        )
    except KeyError as error:
        raise DataError(f"the profile {name} does not say {error}", _REMEDY) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{name} is not a cluster profile: {error}", _REMEDY) from error


def _pair(table: Mapping[str, Any]) -> Pair:
    one, other = table["hosts"]
    return Pair(
        (str(one), str(other)),
        Estimate.read(table, "alpha_s"),
        Estimate.read(table, "beta_s_per_byte"),
        _number(table.get("residual", 0.0)),
        max(1.0, _number(table.get("slowdown", 1.0))),
    )


def _number(value: Any) -> float:
    """A time that makes sense: not a word, not a truth value, not negative, not infinite.

    Raises:
        ValueError: if it is one of these.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a number")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{value!r} is not a time")
    return float(value)
