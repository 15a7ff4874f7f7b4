"""Seeds: of the scale, of a study, of a run; a run's parent has them too."""

SMALL = "studies: {small: {runs: {parent: {seeds: [0, 1, 2]}, plain: {seeds: [7]}}}}"


def seeds(plan):
    found = {}
    for job in plan["train"].values():
        found.setdefault(job["run"], []).append(job["seed"])
    return found


def test_a_run_may_have_seeds_of_its_own(project):
    project.lay_over(project.scale, SMALL)
    found = seeds(project.plan())
    assert found == {"plain": [7], "parent": [0, 1, 2], "child": [0, 1], "deep-3": [0, 1], "deep-4": [0, 1]}


def test_they_change_no_spec(project):
    before = project.plan()["train"]["small/parent/seed0"]["spec_hash"]
    project.lay_over(project.scale, SMALL)
    assert project.plan()["train"]["small/parent/seed0"]["spec_hash"] == before


def test_those_of_the_configuration_are_everybodys(project):
    project.lay_over(project.scale, SMALL)
    project.lay_over(project.config, "seeds: [3]")
    assert set(map(tuple, seeds(project.plan()).values())) == {(3,)}


def test_a_seed_without_a_parent_is_refused(project):
    project.lay_over(project.scale, "studies: {small: {runs: {child: {seeds: [0, 4]}}}}")
    assert project.mistake() == (
        f"{project.scale}: small.runs.child: seed 4 has no parent, since 'parent' has seeds 0, 1; give both the same"
    )


def test_what_are_no_seeds_is_refused(project):
    project.lay_over(project.scale, "studies: {small: {runs: {plain: {seeds: [1, 1]}}}}")
    assert project.mistake().startswith(f"{project.scale}: small.runs.plain.seeds: 1 stands here twice")
