"""The thinking mode of training against what a server's plain chat request gives."""

from dataclasses import replace

import pytest

from tests.data.tiny import CHATML, QWEN3, make_tokenizer
from tests.formats.folders import trained, write_target
from tp_dflash.formats import PublishedDrafter, write_zlab
from tp_dflash.formats.contract import check_folder
from tp_dflash.target import read_target_facts


def _finding(tmp_path, template, thinking):
    target = write_target(tmp_path / "target")
    make_tokenizer(template).save_pretrained(tmp_path / "target")
    _, published = trained(target)
    record = replace(published.record, recipe={"template": {"thinking": thinking}})
    write_zlab(tmp_path / "export", PublishedDrafter(published.shape, published.tensors, record))
    found = check_folder(tmp_path / "export", target, read_target_facts(target))
    return next(finding for finding in found if finding.subject == "thinking mode")


def test_the_templates_own_default_needs_nothing(tmp_path):
    assert _finding(tmp_path, QWEN3, None).ok


def test_thinking_switched_off_in_training_must_be_asked_of_the_server(tmp_path):
    finding = _finding(tmp_path, QWEN3, False)
    assert not finding.ok
    assert '"enable_thinking": false' in finding.remedy


@pytest.mark.parametrize("thinking", [True, False])
def test_a_template_without_the_switch_has_one_mode(tmp_path, thinking):
    assert _finding(tmp_path, CHATML, thinking).ok
