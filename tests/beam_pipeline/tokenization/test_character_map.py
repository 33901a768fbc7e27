"""Characters are mapped as the component does it, whichever thread meets them first."""

from __future__ import annotations

import threading

from beam_pipeline.tokenization.character_map import CharacterMap


class _Slow:
    """Upper case, as a component that lets another thread begin while it maps `ä`."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def normalize_str(self, text: str) -> str:
        if text == "ä":
            self.has_begun.set()
            self.may_end.wait(0.2)
        return text.upper()


def test_threads_that_learn_characters_at_the_same_time_do_not_mix_them_up() -> None:
    component = _Slow()
    characters = CharacterMap(component)
    slow = threading.Thread(target=characters, args=(["ä"],))
    slow.start()
    component.has_begun.wait()
    assert characters(["öß"]) == ["ÖSS"]
    component.may_end.set()
    slow.join()
    assert characters(["äößö"]) == ["ÄÖSSÖ"]
