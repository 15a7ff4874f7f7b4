"""A study asks for a growth in width as it asks for one by tokens."""

WIDE = """
runs:
  child:
    init: plain
    model: {width: 32, heads: 4, tied: false, projection: {kind: linear}, feedforward: {kind: mlp}}
    growth: {keys: null, tau: null, method: hypercloning, noise: 0.3}
"""


def test_a_run_may_grow_in_width(project):
    project.lay_over(project.scale, "studies: {small: {runs: {child: null}}}")
    project.lay_over(project.study, WIDE)
    job = project.plan()["train"]["small/child/seed0"]
    assert job["init"] == "small/plain/seed0"
    assert job["spec"]["growth"] == {
        "method": "hypercloning",
        "keys": "random",
        "tau": "sqrt",
        "optimizer": "fresh",
        "old_tokens": "train",
        "noise": 0.3,
    }
    assert job["spec"]["model"]["width"] == 32


def test_what_the_method_cannot_make_is_refused_with_its_place(project):
    project.lay_over(project.scale, "studies: {small: {runs: {child: null}}}")
    project.lay_over(project.study, WIDE.replace("width: 32", "width: 40"))
    assert project.mistake() == (
        f"{project.study}: runs.child.init: 'plain': cannot grow width=16, heads=2 into width=40, heads=4: "
        "a head keeps its 8 channels; change heads as well"
    )


def test_a_setting_of_tokens_has_no_meaning_there(project):
    project.lay_over(project.scale, "studies: {small: {runs: {child: null}}}")
    project.lay_over(project.study, WIDE.replace("keys: null", "keys: zero"))
    assert "growth: keys=zero has no meaning with method=hypercloning; leave it out" in project.mistake()
