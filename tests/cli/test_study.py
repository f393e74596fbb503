"""`robust201 study`."""

import json


def test_the_marks_of_a_printed_study_are_checked_without_data(robust201):
    ended = robust201("study", "--published", "image-distribution")
    assert ended.code == 0
    assert "117 of 118 printed decisions follow" in ended.out
    assert "102 of 106 printed marks are left" in ended.out
    value = json.loads(robust201("study", "--published", "image-distribution", "--json").out)
    assert (value["marks_that_follow"], value["comparisons_checked"]) == (117, 118)


def test_another_name_is_one_line(robust201):
    ended = robust201("study", "--published", "image-distributions")
    assert (ended.code, ended.out) == (2, "")
    assert "Did you mean 'image-distribution'?" in ended.err
