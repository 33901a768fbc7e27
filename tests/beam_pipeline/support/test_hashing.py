"""Seeded hashes: recorded values, since a change to one changes every dataset's bytes."""

from __future__ import annotations

import numpy as np

from beam_pipeline.support.hashing import key64, mix64, place_hashes, text_hashes


def test_the_hashes_are_the_recorded_ones():
    assert key64("split", 0, "a.txt") == 16502075225494457000
    assert mix64(np.arange(2, dtype=np.uint64)).tolist() == [16294208416658607535, 10451216379200822465]
    assert place_hashes("split", 7, "a.txt", np.array([0, 41])).tolist() == [
        7879840359922092047,
        4744755640130073426,
    ]
    assert text_hashes(["text", ""]).tolist() == [
        [10592763770441183959, 1361893561239468369],
        [4665148505410102986, 8103847710287220046],
    ]


def test_purpose_seed_and_file_each_change_the_hashes_of_all_places():
    places = np.arange(100)
    argument_lists = [
        ("split", 7, "a.txt"),
        ("share", 7, "a.txt"),
        ("split", 8, "a.txt"),
        ("split", 7, "b.txt"),
    ]
    hashes = np.concatenate([place_hashes(*arguments, places) for arguments in argument_lists])
    assert len(np.unique(hashes)) == 400


def test_equal_texts_have_equal_hashes_and_lone_surrogates_have_one():
    first, second, surrogate = text_hashes(["text", "text", "\ud800"]).tolist()
    assert first == second != surrogate
