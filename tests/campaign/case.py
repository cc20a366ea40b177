"""One case of the campaign: what it draws, where it works, and what is wrong in the end."""

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class Case:
    """A case, which all areas are given.

    Attributes:
        rng: decides everything.
        folder: an empty one.
        what: what was made, and what was done to it.
        problems: what is wrong.
    """

    rng: random.Random
    folder: Path
    what: str = ""
    problems: list[str] = dataclasses.field(default_factory=list)

    def happens(self, share: float) -> bool:
        """Draws whether something happens that does so in this share of the cases."""
        return self.rng.random() < share

    def pick(self, *choices: Any) -> Any:
        """Draws one of these."""
        return self.rng.choice(choices)

    def require(self, is_right: object, problem: str) -> None:
        """Complains unless something is right."""
        if not is_right:
            self.problems.append(problem)

    def compare(self, what: str, found: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> None:
        """Complains of all that is missing, too much, or another than it must be."""
        pairs = {
            n: (found.get(n, "nothing"), wanted.get(n, "nothing")) for n in {**wanted, **found}
        }
        names = [name for name, (one, other) in pairs.items() if one != other]
        shown = [f"{n}: {pairs[n][0]!r:.100} instead of {pairs[n][1]!r:.100}" for n in names]
        self.require(not names, f"{what}: {len(names)} differ; {'; '.join(shown[:20])}")

    def require_message(self, text: str, code: int = 2) -> None:
        """Complains of a traceback, and of a failure that no message explains to a user."""
        message = text.rpartition("error: ")[2].strip() if "error: " in text else ""
        is_clear = 20 < len(message) < 4000 or code == 0
        start = max(text.find("Traceback") - 300, 0) if "Traceback" in text else -1500
        shown = text[start:][:1800]
        self.require(
            is_clear and "Traceback" not in text, f"exit code {code} and no message: {shown}"
        )
