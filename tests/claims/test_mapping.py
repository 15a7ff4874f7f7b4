"""Every study maps its arms to runs, and what is not registered is refused."""

from pathlib import Path

import pytest

from formerlab.errors import UserError
from formerlab.plan.claim_arms import missing_arms, read_arms
from formerlab.report.claims.registry import read_claims

ROOT = Path(__file__).parents[2]
SCALES = ("smoke", "laptop", "overnight", "pretrained", "workstation", "paper")


@pytest.mark.parametrize("scale", SCALES)
def test_studies_map_registered_claims(scale):
    arms = read_arms(ROOT, scale)
    assert arms.pop("combined") == {}, "no paper claims anything of it"
    assert set(arms) == {"transformer", "tokenformer", "denseformer", "decay", "vision"}
    registered = {claim.id: claim for claim in read_claims().claims}
    for study, claims in arms.items():
        assert claims, study
        for name, mapped in claims.items():
            assert registered[name].kind == "measured"
            assert set(mapped.items) <= set(registered[name].criterion.for_each)


WAITING = {  # for runs that neither of these scales plans
    "tokenformer-growth-beats-continuing",
    "tokenformer-growth-gap-shrinks-with-stage",
    "tokenformer-growth-saves-cost",
    "tokenformer-gap-shrinks-with-training",
    "denseformer-gain-persists-with-training",
}
NEVER = WAITING | {"decay-h2o-nearly-lossless-long-prompts"}  # five-shot prompts: for published models (docs/decay.md)
RIVAL = "tokenformer-growth-beats-width-growth"  # HyperCloning needs whole factors, which paper's sizes are not


@pytest.mark.parametrize(("scale", "but"), [("workstation", NEVER), ("paper", NEVER | {RIVAL})])
def test_claims_find_all_their_arms_where_they_are_judged(scale, but):
    assert {claim for claim, missing in missing_arms(ROOT, scale).items() if missing} == but


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("decay-beats-h2", "no claim 'decay-beats-h2'; did you mean decay-beats-h2o"),
        ("decay-beats-h2o: {arms: {h20: {run: decoder}}}", "no arm 'h20'; the claim has decay, h2o, full"),
        ("decay-beats-h2o: {items: {first: {}}}", "no item 'first'; the claim has none"),
        ("decay-beats-h2o: {arms: {h2o: {}}}", "an arm names one of run, best_of and constant, not none"),
    ],
)
def test_what_is_not_registered_is_refused(tmp_path, text, message):
    entry = text if ":" in text else f"{text}: {{}}"
    for folder in ("studies", "scales"):
        (tmp_path / "workflow" / folder).mkdir(parents=True)
    study = f"title: x\npaper: x\nquestion: x\nruns: {{}}\nclaims:\n  {entry}\n"
    (tmp_path / "workflow/studies/decay.yaml").write_text(study)
    (tmp_path / "workflow/scales/smoke.yaml").write_text("description: x\n")
    with pytest.raises(UserError) as error:
        read_arms(tmp_path, "smoke")
    assert message in str(error.value)
