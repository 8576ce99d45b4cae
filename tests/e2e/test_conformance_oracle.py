"""The oracle agrees with its controls, and would see it if it were wrong."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from dspatch import paths, process
from dspatch.conformance import causes, checkpoint, oracle, small, tolerance
from dspatch.conformance.oracle import Golden, Oracle
from dspatch.console import Console
from dspatch.engines.workers.vllm_worker import places as watching
from dspatch.errors import CheckpointError
from dspatch.stages import prepare

pytestmark = pytest.mark.e2e

MODELS = ("deepseek-v2-lite", "deepseek-v2", "deepseek-v3")
SPARSE = "deepseek-v3.2"

HEAD = """
import json, pathlib, sys, torch
from safetensors.torch import load_file
from oracle_worker import golden, metrics, twin
torch.set_num_threads(2)
folder = pathlib.Path(sys.argv[1])
config, ids = json.loads((folder / "oracle.json").read_text()), json.loads(sys.argv[2])
weights = load_file(folder / "model.safetensors")
right = twin.run(config, weights, ids).logits
def difference(config=config, weights=weights):
    return metrics.relative(twin.run(config, weights, ids).logits, right)
"""

# Each weight alone is replaced by what an engine would have without it: ones in a norm, else zeros.
TENSORS = """
blind = []
asked = [name for name in weights if ".indexer." in name] or list(weights)
for name, value in ((name, weights[name]) for name in asked):
    left = torch.ones_like(value) if name.endswith("norm.weight") else torch.zeros_like(value)
    if not difference(weights={**weights, name: left}) > 1e-8:
        blind.append(name)
print(json.dumps(blind))
"""

FACTS = """
def scaling(**changes):
    return {**config, "rope_scaling": {**config["rope_scaling"], **changes}}
faults = {"softmax mscale dropped": scaling(mscale=0, mscale_all_dim=0)}
faults["plain rope"] = {**config, "rope_scaling": None}
faults["another base"] = {**config, "rope_theta": 50000.0}
faults["routed scaling"] = {**config, "routed_scaling_factor": 1.5}
faults["renormalised"] = {**config, "norm_topk_prob": not config["norm_topk_prob"]}
faults["one expert fewer"] = {**config, "num_experts_per_tok": 3}
if config["n_group"] > 1:
    faults["groups ignored"] = {**config, "topk_group": config["n_group"]}
if "index_topk" in config:
    faults["one key fewer"] = {**config, "index_topk": config["index_topk"] - 1}
    faults["no choice of keys"] = {**config, "index_topk": len(ids)}
print(json.dumps({name: difference(config=wrong) for name, wrong in faults.items()}))
"""

# What the comparison of operations says of one planted difference each, at a known position.
PLACES = """
from oracle_worker import placing
expected = {"rows": torch.tensor([0, 1, 5]), "place.0.rope": torch.randn(3, 8), "place.0.q_a": torch.randn(3, 4)}
expected["place.1.router"] = torch.tensor([[0.5, 0, 0.2], [0.1, 0.3, 0], [0, 0.4, 0.4]])
def compare(tokens=9, **changes):
    found = {**expected, "seen": torch.ones(3), **changes}
    return placing.compare(expected, {k: v for k, v in found.items() if v is not None}, tokens, 1e-8, 2.5)
def manner(change):
    value = expected["place.0.rope"].clone()
    value[1:] = change(value[1:])
    entry = compare(**{"place.0.rope": value})["found"]["0.rope"]
    assert entry["off"] == [1, 5] and entry["position"] == 1, entry
    return entry["manner"], entry["factor"]
clean = compare()
assert all(entry["relative"] == 0 and not entry["off"] for entry in clean["found"].values()), clean
assert clean["found"].keys() == {"0.rope", "0.q_a", "1.router_choice", "1.router_weight"}
assert manner(lambda v: v * 0)[0] == "zero" and manner(lambda v: v / 0)[0] == "not-finite"
one = expected["place.0.rope"].index_fill(0, torch.tensor([2]), float("nan"))
told = compare(**{"place.0.rope": one})["found"]["0.rope"]
assert told["off"] == [5] and told["each"][2] == float("inf"), "rounding sends no token to NaN"
assert not any(clean["found"]["0.rope"]["each"])
kind, factor = manner(lambda v: v * 0.4)
assert kind == "factor" and abs(factor - 0.4) < 1e-6
assert manner(lambda v: v.flip(-1))[0] == "order" and manner(lambda v: v + 1)[0] == "other"
assert compare(**{"place.0.q_a": None})["unobserved"] == ["0.q_a"]
assert compare(**{"place.0.q_a": torch.randn(3, 5)})["unobserved"] == ["0.q_a"]
assert len(compare(seen=None)["unobserved"]) == 3 and not compare(seen=None)["found"]
assert compare(tokens=5)["rows"] == [0, 1] and compare(seen=torch.tensor([0, 1, 1]))["rows"] == [1, 5]
router = expected["place.1.router"]
assert compare(**{"place.1.router": router * 2.5})["found"]["1.router_weight"]["relative"] < 1e-12
assert compare(**{"place.1.router": router * 1.5})["found"]["1.router_weight"]["off"] == [0, 1, 5]
other = router.clone(); other[1] = torch.tensor([0.1, 0, 0.3])
chosen = compare(**{"place.1.router": other})["found"]
assert chosen["1.router_choice"]["off"] == [1] and chosen["1.router_choice"]["got"] == ["0", "2"]
assert not chosen["1.router_weight"]["off"]
# Layers and logits come without looking inside; logits of a cached prompt begin late.
expected |= {"ids": torch.arange(8), "layer.0": torch.randn(8, 4), "logits": torch.randn(8, 6)}
late = expected["logits"][4:7].clone(); late[1] += 1
shown = {"layer.0": expected["layer.0"][:7] * 2, "logits": late}
found = placing.compare(expected, shown, 9, 1e-8, 1)["found"]
assert found["0.layer"]["off"] == [0, 1, 5] and abs(found["0.layer"]["factor"] - 2) < 1e-9, found
assert found["head"]["off"] == [5] and found["head"]["position"] == 5, found
assert not placing.compare(expected, {"logits": late}, 5, 1e-8, 1)["found"]
x = torch.randn(4, 9); counts = metrics.histogram(x, x)
assert counts[0] == 36 and sum(counts) == 36 and sum(metrics.histogram(x * 2, x)[12:]) > 0
"""

# A checkpoint of somebody's own, in two files and bf16: read as it is, and wrong in each way.
GIVEN = """
import tempfile
from safetensors.torch import save_file
from oracle_worker import adopt
def given(tensors):
    source = pathlib.Path(tempfile.mkdtemp())
    (source / "config.json").write_text((folder / "config.json").read_text())
    names = sorted(tensors)
    for part in (0, 1):
        save_file({n: tensors[n].contiguous() for n in names[part::2]}, source / f"model-{part}.safetensors")
    return source
half = {name: value.bfloat16() for name, value in weights.items()}
extra = {"model.layers.3.eh_proj.weight": torch.ones(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
source = given({**half, **extra})
assert not any(adopt.inspect(source, config).values()), adopt.inspect(source, config)
target = pathlib.Path(tempfile.mkdtemp()) / "whole"
adopt.adopt(source, config, target)
written = load_file(target / "model.safetensors")
assert written.keys() == weights.keys()
assert all((written[n] == half[n]).all() and written[n].dtype == torch.bfloat16 for n in written)
broken = dict(half)
del broken["model.norm.weight"]
broken["model.layers.1.x.weight"] = torch.ones(2)
broken["lm_head.weight"] = broken["lm_head.weight"].index_fill(0, torch.tensor([3]), float("inf"))
broken["model.layers.0.input_layernorm.weight"] = torch.ones(7)
found = adopt.inspect(given(broken), config)
assert found["missing"] == ["model.norm.weight"] and found["extra"] == ["model.layers.1.x.weight"]
assert found["not finite"] == ["lm_head.weight"]
assert found["misshapen"] == ["model.layers.0.input_layernorm.weight (7, not 256)"], found
"""

# What is stored is read as what is meant, bit for bit; and no part of it can change unseen.
STORED = """
from oracle_worker import dequantise, loss, quantised as forms
def read(stored, form):
    return dict(dequantise.meant(stored.items(), forms.SAID[form]))["a_proj.weight"]
wide = torch.randn(576, 256, generator=torch.Generator().manual_seed(0)) / 16
for form, most in {"fp8-blocks": 1e-3, "awq": 1e-2, "gptq": 2e-2, "gptq-8": 1e-4}.items():
    stored, right = forms.quantised({"a_proj.weight": wide}, form)
    right = right["a_proj.weight"]
    assert torch.equal(read(stored, form), right), form
    assert metrics.relative(right, wide) < most, (form, metrics.relative(right, wide))
    for name, value in stored.items():
        changed = value.flip(0) if value.dtype.is_floating_point else value.roll(1, 0)
        # One group of each column after the other has its own zero point, but GPTQ's are all alike.
        if not name.endswith("g_idx") and not (form.startswith("gptq") and name.endswith("qzeros")):
            assert not torch.equal(read({**stored, name: changed}, form), right), (form, name)
try:
    stored, _ = forms.quantised({"a_proj.weight": wide}, "fp8-blocks")
    cut = stored["a_proj.weight_scale_inv"][:4]
    read({**stored, "a_proj.weight_scale_inv": cut}, "fp8-blocks")
except dequantise.UnreadableError as error:
    assert "(4, 2) scales of (576, 256) weights" in str(error), error
else:
    raise AssertionError("a block's scale may be missing")
try:
    read({"a_proj.qweight": torch.zeros(8, 1, dtype=torch.int32)}, "awq")
except dequantise.UnreadableError as error:
    assert str(error) == "a_proj cannot be read: it has no qzeros", error
else:
    raise AssertionError("zero points may be missing")
first = torch.randn(9, 20, generator=torch.Generator().manual_seed(1))
run = {"alone/a#0.logits": first, "alone/b#0.logits": first[:3].clone()}
run |= {f"alone/{name}#0.tokens": torch.zeros(3) for name in "ab"}
other = {**run, "alone/a#0.logits": torch.cat((first[:6], -first[6:7], first[7:]))}
places = []
for found in (run, other):
    places.append(pathlib.Path(tempfile.mkdtemp()) / "run.safetensors")
    save_file(found, places[-1])
same, lost = loss.measure(places[0], places[0]), loss.measure(*places)
none = {"kl_mean": 0.0, "kl_p99": 0.0, "kl_max": 0.0, "top1": 1.0}
assert same == {"a": {"tokens": 7, **none}, "b": {"tokens": 1, **none}}, same
p, q = first[6].double().log_softmax(-1), (-first[6]).double().log_softmax(-1)
kl = float((p.exp() * (p - q)).sum())
assert abs(lost["a"]["kl_max"] - kl) < 1e-9 and abs(lost["a"]["kl_mean"] - kl / 7) < 1e-9, lost
assert abs(lost["a"]["top1"] - 6 / 7) < 1e-12 and lost["b"] == same["b"], lost
print("[]")
"""

# The rules of other projects do what they are written to do, blind spots included.
RULES = """
from oracle_worker import rules
first = torch.arange(10.0).repeat(3, 1)
text = torch.tensor([9, 9, 9])
def close(other): return rules.logprobs_close(text, torch.tensor(other), first, first)
assert close([9, 9, 9]) and close([9, 5, 5]) and not close([9, 4, 9])
assert close([9, 5, 0]), "it stops at the first difference"
def near(second, other=text, length=5): return rules.values_near(text, other, first, second, length)
bent = first.clone(); bent[0, 9] += 0.03
assert near(first) and near(bent) and not near(first, torch.tensor([9, 9, 8]))
bent[0, 9] += 0.2
assert not near(bent)
assert near(first.flip(-1)), "it compares values, whatever token they belong to"
long = torch.cat((bent[:1], first))
assert rules.values_near(text, text, torch.cat((first[:1], first)), long, 101), "long prompts are left out"
assert not rules.values_near(text, text, torch.cat((first[:1], first)), long, 100)
"""

# A model that goes given ways computes what it would have; other ways change it; rounding stays rounding.
WAYS = """
from oracle_worker import each
seen = {}
kept = twin.routed
def note(config, raw, bias):
    weights, margin = kept(config, raw, bias)
    seen[len(seen) + config["first_k_dense_replace"]] = weights.topk(config["num_experts_per_tok"])[1]
    return weights, margin
twin.routed = note
plain = twin.run(config, weights, ids)
twin.routed = kept
same = twin.run(config, weights, ids, routes=seen)
assert metrics.relative(same.logits, right) < 1e-20 and len(same.states) == config["num_hidden_layers"]
last = max(seen)
moved = {**seen, last: (seen[last] + 1) % config["n_routed_experts"]}
other = twin.run(config, weights, ids, routes=moved)
assert metrics.relative(other.states[last], plain.states[last]) > 1e-3
assert metrics.relative(other.states[last - 1], plain.states[last - 1]) == 0
assert metrics.relative(twin.headed(config, weights, plain.states[-1])[1], right) < 1e-20
coarse = twin.run(config, weights, ids, dtype=torch.bfloat16)
rows = metrics.by_row(coarse.logits.double(), right)
assert coarse.logits.dtype == torch.bfloat16 and 1e-6 < float(rows.median()) < 1e-3, rows
found = {"logits": right.float(), "layer.0": plain.states[0].float()}
golden = {"ids": torch.tensor([*ids, 0]), "logits": right, "layer.0": plain.states[0]}
told = each.measure(golden, found, found["logits"], right, len(ids))
assert told["first"] == 0 and len(told["logprob"]) == len(told["layer.0"]) == len(ids)
assert max(told["logprob"]) < 1e-4 and max(told["margin"]) == 0
broken = {**found, "logits": found["logits"].index_fill(0, torch.tensor([3]), float("nan"))}
told = each.measure(golden, broken, broken["logits"], right, len(ids))
assert told["logprob"] == [float("inf")] * len(ids) and told["logits"].count(float("inf")) == 1
assert told["divergence"] == [float("inf")] * len(ids)
# An engine is followed to its own experts, through its own text, and one wrong token of it is seen.
from oracle_worker import following, probing
own = {n: v.to(torch.int32) for n, v in moved.items()}
model = probing.Model(config=config, weights=weights, held=weights, dtype="bfloat16", stretch=1.0)
golden = {"ids": torch.tensor([*ids[:-4], 0, 0, 0, 0, 0])}
text = {"tokens": torch.tensor([*ids[-4:], 9]), "logits": other.logits.float()}
text |= {f"routes.{n}": v for n, v in own.items()}
assert max(following.measure(golden, text, model).tokens) < 1e-4
late = {**text, "logits": text["logits"][-5:].clone()}
late["logits"][2, 7] += 3
wrong = following.measure(golden, late, model).tokens
assert len(wrong) == 5 and wrong[2] > 1 and max(wrong[:2] + wrong[3:]) < 1e-4
turned = {**text, f"routes.{last}": seen[last]}
assert min(following.measure(golden, turned, model).tokens) > 1e-3, "the experts are the engine's"
assert following.measure(golden, {**text, f"routes.{last}": own[last][1:]}, model) == following.NOT_FOLLOWED
for strange in (-1, config["n_routed_experts"]):
    none = own[last].index_fill(0, torch.tensor([2]), strange)
    assert following.measure(golden, {**text, f"routes.{last}": none}, model) == following.NOT_FOLLOWED
nan = {**late, "logits": late["logits"] / 0}
assert following.measure(golden, nan, model).tokens == [float("inf")] * 5
# Its choices, too: where it went its own best way nothing is missed, and one wrong choice of all is seen.
right_ways = {"tokens": text["tokens"], "logits": right.float(), **{f"routes.{n}": v for n, v in seen.items()}}
sound = following.measure(golden, right_ways, model).experts
assert sound == [[n, 0.0, 0, len(ids)] for n in seen], sound
told = following.measure(golden, text, model).experts
assert told[-1][1] > 1e-3 and told[-1][2] > 0 and told[:-1] == sound[:-1], told
lone = seen[last].clone()
lone[3] = own[last][3].long()
[*_, (_, worst, count, _)] = following.measure(golden, {**right_ways, f"routes.{last}": lone}, model).experts
assert worst > 1e-4 and count == 1
from oracle_worker import choosing
raw = twin.run(config, weights, ids).routers[last]
bias = weights.get(f"model.layers.{last}.mlp.gate.e_score_correction_bias", torch.zeros(())).double()
assert choosing.missed(config, raw, bias, seen[last]).tolist() == [0.0] * len(ids)
# The least change that would have made a choice the best: two experts as near as a margin are exchanged for no more.
least = twin.routed(config, raw, bias)[1]
at = int(least.argmin())
score = twin.preferred(config, twin.scored(config, raw), bias)[at]
others = [e for e in range(config["n_routed_experts"]) if e not in seen[last][at].tolist()]
swaps = []
for taken in range(config["num_experts_per_tok"]):
    for other in others:
        swapped = seen[last].clone()
        swapped[at, taken] = other
        swaps.append(float(choosing.missed(config, raw, bias, swapped)[at]))
assert min(swaps) >= float(least[at]) - 1e-12 and all(value > 0 for value in swaps), (min(swaps), least[at])
# A planted near-tie is found, and no model that was drawn has one on its own prompts.
from oracle_worker import margins
assert margins.margin(config, weights, ids) > 2e-7
name = f"model.layers.{last}.mlp.gate.e_score_correction_bias"
each = config["n_routed_experts"] // config["n_group"]
own_groups = {e // each for e in seen[last][at].tolist()}
left = max((e for e in others if e // each in own_groups), key=lambda e: float(score[e]))
short = float(score[seen[last][at]].min() - score[left])
for near in (8e-8, 3e-9):
    tied = weights[name].double().clone()
    tied[left] += short - near
    found = margins.margin(config, {**weights, name: tied}, ids)
    assert 0 <= found <= near * 1.01, (found, near, short)
assert choosing.missed(config, raw, bias, seen[last] * 0).isinf().all(), "one expert is not as many"
if config["topk_method"] != "greedy":
    each = config["n_routed_experts"] // config["n_group"]
    spread = torch.arange(config["num_experts_per_tok"]).expand(len(ids), -1) * each % config["n_routed_experts"]
    assert choosing.missed(config, raw, bias, spread).isinf().all(), "more groups than may be chosen"
cut = {f"p.routes.{last}": own[last][3:], "p.cached": torch.tensor([3])}
whole = following.completed(cut, {f"p.routes.{last}": own[last]})
assert torch.equal(whole[f"p.routes.{last}"], own[last])
assert following.completed(cut, {})[f"p.routes.{last}"].shape == own[last][3:].shape
"""

# A checkpoint in bfloat16 beside the one that it was rounded from, and the controls of its golden results.
ROUNDED = """
import sys, torch
from safetensors.torch import load_file
plain, narrow, golden = map(load_file, sys.argv[1:])
assert plain.keys() == narrow.keys()
for name, value in plain.items():
    wide = name.endswith("e_score_correction_bias")
    assert narrow[name].dtype == (torch.float32 if wide else torch.bfloat16), name
    assert torch.equal(narrow[name], value.to(narrow[name].dtype)), name
assert max(float(golden[f"sane.{one}"]) for one in ("sdpa", "twin")) < 1e-10
print("whole")
"""

# transformers' own results are what each operation should give for its input; one changed is wrong there first.
OPERATIONS = """
from oracle_worker import operations, placing, probing
import dataclasses
known = {n[6:]: v for n, v in load_file(sys.argv[3]).items() if n.startswith("short.")}
every, rows, layers = known["ids"], known["rows"], config["num_hidden_layers"]
states = {"0": weights["model.embed_tokens.weight"][every[:-1]]}
states |= {str(n + 1): known[f"layer.{n}"] for n in range(layers)}
context = {}
for n in range(layers):
    part = twin.below(weights, f"model.layers.{n}.")
    normed = twin.norm(states[str(n)].double(), part["input_layernorm.weight"].double(), config)
    both = normed @ part["self_attn.kv_a_proj_with_mqa.weight"].double().T
    latent, key = both[:, :config["kv_lora_rank"]], both[:, config["kv_lora_rank"]:]
    context[f"{n}.kv_a_norm"] = twin.norm(latent, part["self_attn.kv_a_layernorm.weight"].double(), config)
    context[f"{n}.key"] = twin.rotate(config, key[:, None])[:, 0]
places = {n[6:]: v for n, v in known.items() if n.startswith("place.")}
places |= {f"{n}.input": v[rows] for n, v in states.items()}
own = {"weights": weights, "ids": every, "positions": rows, "places": places, "context": context, "choices": {}}
text = operations.Text(config=config, **own)
def off(text, by=1.0):
    text = operations.undivided(text, by)
    return {n: metrics.relative(*pair) for n, pair in operations.pairs(text).items()}
clean = off(text)
assert clean.keys() == {n for n in places if not n.endswith(".input")} | {f"{n}.layer" for n in range(layers)}
assert max(clean.values()) < 1e-9, clean
assert metrics.relative(operations.headed(text), known["logits"][rows]) < 1e-10
order = list(clean)
for name in order:
    kind = name.split(".")[-1]
    if kind in ("router", "layer"):
        continue
    wrong = off(dataclasses.replace(text, places={**places, name: places[name] * 1.1}))
    assert wrong[name] > 1e-3, (name, wrong)
    assert all(wrong[before] < 1e-9 for before in order[:order.index(name)]), (name, wrong)
# What an engine does not show is made of what it does: a fault of it shows in the next.
hidden = {n: v for n, v in places.items() if n != "1.rope"}
assert off(dataclasses.replace(text, places=hidden))["1.attention"] < 1e-9
query = {**hidden, "1.query": places["1.query"].flip(-1)}
assert off(dataclasses.replace(text, places=query))["1.attention"] > 1e-3
# A router is right by the engine's own logits, whatever the oracle's say; the others are judged by its choice.
swapped = places["1.router"].clone()
swapped[2] = swapped[2].roll(1)
wrong = off(dataclasses.replace(text, places={**places, "1.router": swapped}))
assert wrong["1.router"] > 1e-3 and wrong["1.experts"] > 1e-3 and wrong["1.gate"] < 1e-9
logits = {**places, "1.gate": places["1.gate"].roll(1, -1)}
assert off(dataclasses.replace(text, places=logits))["1.router"] > 1e-3
# Earlier positions that nobody saw leave attention untold, and nothing else.
part = {n: v.clone() for n, v in context.items()}
part["0.key"][1] = float("nan")
assert off(dataclasses.replace(text, context=part)).keys() == clean.keys() - {"0.attention"}
# An engine may divide the stream from the first layer on, and what experts add with it.
def divided(places, by):
    out = dict(places)
    for n in range(layers):
        out[f"{n + 1}.input"] = places[f"{n + 1}.input"] / by
        if f"{n}.experts" in places:
            shared = places[f"{n}.shared_expert"]
            out[f"{n}.experts"] = (places[f"{n}.experts"] + shared) / by - shared
    return out
for by in (1.0, 4.0):
    told = off(dataclasses.replace(text, places=divided(places, by)), 4.0)
    assert max(told.values()) < 1e-9, (by, told)
halved = divided(places, 4.0)
halved["1.experts"] = halved["1.experts"] * 1.1
assert off(dataclasses.replace(text, places=halved), 4.0)["1.experts"] > 1e-3
# The comparison says whose they are, and takes a choice for wrong that no rounding turns.
known_as = {"config": config, "weights": weights, "held": weights, "dtype": "bfloat16"}
model = probing.Model(**known_as, stretch=1.0, times=5.0)
shown = {"seen": torch.ones(len(rows)), "logits": known["logits"][:-1]}
shown |= {f"place.{n}": v for n, v in places.items()} | {f"context.{n}": v for n, v in context.items()}
told = placing.compare(known, shown, len(every), 1e-9, config["routed_scaling_factor"], model)
assert all(one["own"] and not one["off"] for one in told["found"].values()), told
assert told["unobserved"] == [] and {"head", "1.router_choice", "0.layer"} <= told["found"].keys()
shown["place.1.router"] = swapped
wrong = placing.compare(known, shown, len(every), 1e-9, config["routed_scaling_factor"], model)["found"]
assert wrong["1.router_choice"]["off"] == [int(rows[2])], wrong["1.router_choice"]
late = {**shown, "logits": known["logits"][5:-1]}
head = placing.compare(known, late, len(every), 1e-9, 1.0, model)["found"]["head"]
assert len(head["each"]) == int((rows >= 5).sum()) and max(head["each"]) < 1
# Rows are told by how many times plain torch's error they are off: a hundredth of bfloat16's is nothing.
for gain, least, most in ((1 + 1e-5, 0, 0.1), (1 + 3e-3, 0.5, 5), (1.3, 1e3, 1e6)):
    rope = {**shown, "place.0.rope": places["0.rope"] * gain}
    entry = placing.compare(known, rope, len(every), 1e-9, 1.0, model)["found"]["0.rope"]
    assert least <= max(entry["each"]) < most and bool(entry["off"]) == (gain > 1.1), (gain, entry)
assert entry["manner"] == "factor" and abs(entry["factor"] - gain) < 1e-6
coarse = torch.tensor([[1.0, 2.0], [float("inf"), 0.0]], dtype=torch.float16)
units = operations.rounding(torch.ones(2, 2, dtype=torch.float64), coarse, torch.float16)
assert bool(units.isfinite().all()) and float(units[0]) > 0.1
print("[]")
"""

METRICS = """
x = torch.randn(5, 7)
nan = torch.full_like(x, float("nan"))
assert metrics.relative(x, x) == 0 and metrics.relative(x, x[:4]) == float("inf")
rows = metrics.by_row(torch.stack((x[0], nan[0], -x[2])), x[:3]).tolist()
assert rows[:2] == [0, float("inf")] and abs(rows[2] - 2) < 1e-12
assert metrics.by_row(x, x[:4]).tolist() == [float("inf")]
assert metrics.median(torch.tensor([3.0, 1.0, 2.0])) == 2 and metrics.median(torch.tensor([1.0, 2.0])) == 2
assert metrics.median(torch.tensor([])) == float("inf")
assert metrics.median(torch.tensor([0.0, 0.0, float("inf")])) == float("inf")
given = torch.tensor([[0.0, 2.0, 1.0]] * 4 + [[float("nan")] * 3])
lost = metrics.unchosen(given, torch.tensor([1, 2, 3, -1, 0])).tolist()
assert lost == [0, 1, float("inf"), 0, float("inf")]
assert metrics.relative(nan, x) == float("inf") and metrics.worst_logprob(nan, x) == float("inf")
assert abs(metrics.relative(-x, x) - 2) < 1e-12
assert abs(metrics.relative(torch.tensor([1e-9]) + 1, torch.ones(1))) < 1e-12
assert metrics.worst_logprob(x + 3, x) < 1e-5, "a shift of all logits changes no probability"
y = x.clone(); y[2, 0] = x[2].max() + 1
missed = metrics.margins_missed(y, x)
assert len(missed) <= 1 and (missed >= 0).all() and len(metrics.margins_missed(x, x)) == 0
routes = torch.tensor([[0, 1], [2, 3]])
assert metrics.routes_differing(routes, routes) == 0
assert metrics.routes_differing(torch.tensor([[0, 1], [2, 4]]), routes) == 1
assert metrics.routes_differing(routes[:1], routes) == 2
inf = float("inf")
scores = torch.tensor([[1.0, -inf, -inf], [1.0, 2.0, -inf], [3.0, 2.5, 1.0]])
def missed(*rows):
    return metrics.choices_missed(torch.tensor(rows), scores).tolist()
assert missed([-1, 0], [0, 1], [1, 0]) == [0, 0, 0]
assert missed([-1, 0], [0, 1], [0, 2]) == [0, 0, 1.5], "the second best was left for the worst"
assert missed([0, 1], [0, 0], [-1, 0]) == [inf, inf, inf], "a later key, one twice, one too few"
assert missed([-1, 0], [0, 1]) == [inf, inf, inf], "a row is missing"
print("[]")
"""


def ask(standing: Oracle, golden: Golden, body: str, prompt: str) -> object:
    """What a script prints, run in the oracle's environment on one checkpoint and prompt."""
    ids = json.dumps(small.prompts()[prompt])
    script = [standing.python, "-c", HEAD + body, golden.checkpoint.path, ids, golden.path]
    return json.loads(process.run(script, env=oracle.variables()).stdout)


# docs/bug-cases.md: what is right, by numbers known beforehand and by two ways to the same number.
CASES = """
import math
from oracle_worker import probing, rotary
blind = []
def need(bug, holds):
    if not holds:
        blind.append(bug)
draw = torch.Generator().manual_seed(0)
def rand(*shape):
    return torch.randn(*shape, generator=draw, dtype=torch.float64)
def yarn(**mscales):
    fixed = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
    return {"type": "yarn", "factor": 40, **fixed, **mscales}
heads = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 10000.0}
def with_yarn(one, all_dim):
    return {**heads, "rope_scaling": yarn(mscale=one, mscale_all_dim=all_dim)}
lite, large, unequal = with_yarn(0.707, 0.707), with_yarn(1.0, 1.0), with_yarn(1.0, 0.5)
def squared(config):
    return twin.softmax_scale(config) * 192 ** 0.5
need("B20", abs(squared(lite) - 1.58963) < 1e-5 and abs(squared(large) - 1.87385) < 1e-5)
need("B21", abs(squared(unequal) - (0.05 * math.log(40) + 1) ** 2) < 1e-12)
need("B21", abs(squared(with_yarn(1.0, 0)) - 1.0) < 1e-12)
unit = torch.ones(64, 1, 64, dtype=torch.float64)
lengths = [float(twin.rotate(c, unit).square().sum(-1).max()) for c in (lite, large)]
need("B23", all(abs(length - 64) < 1e-9 for length in lengths))
need("B23", abs(twin.turns(unequal)[1] - 1.36889 / 1.18444) < 1e-5)
# Halves are pairs in another order: scores are equal, the tensors are not, and a mixture is wrong.
order = [*range(0, 64, 2), *range(1, 64, 2)]
plain = {**heads, "rope_scaling": None}
angle = torch.arange(7, dtype=torch.float64)[:, None] * rotary.frequencies(64, 1e4, None)
def halves(x):
    a, b = x[..., :32], x[..., 32:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
q, k = rand(7, 64), rand(7, 64)
def pairs(x):
    return twin.rotate(plain, x[:, None])[:, 0]
need("B24", torch.allclose(pairs(q) @ pairs(k).T, halves(q[:, order]) @ halves(k[:, order]).T))
need("B24", torch.allclose(pairs(k)[:, order], halves(k[:, order])))
need("B24", not torch.allclose(pairs(k), halves(k[:, order])))
wrong = halves(q) @ halves(k).T - pairs(q) @ pairs(k).T
need("B24", float(wrong.abs().max()) > 0.5 and abs(float(wrong[0, 0])) < 1e-9)
def router(**changes):
    return {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 4, "topk_group": 2,
        "num_experts_per_tok": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5, **changes}
logits, none = 2 * rand(400, 16), torch.zeros(16)
second = router(scoring_func="softmax", topk_method="group_limited_greedy", norm_topk_prob=False,
    routed_scaling_factor=16.0)
weights_, _ = twin.routed(second, logits, none)
share = logits.softmax(-1)
chosen = weights_ > 0
need("B27", torch.allclose(weights_[chosen], 16 * share[chosen]))
kept = chosen.unflatten(-1, (4, 4)).any(-1)
best = share.unflatten(-1, (4, 4)).amax(-1).topk(2)[1].sort(-1)[0]
both = kept.sum(-1) == 2
need("B27", bool((kept.sum(-1) <= 2).all()) and int(both.sum()) > 200)
need("B27", bool((best == kept.int().topk(2)[1].sort(-1)[0])[both].all()))
high = rand(16).abs() + 2
biased, _ = twin.routed(router(), logits, high)
score = logits.sigmoid()
taken = biased > 0
bare = score.where(taken, 0.0)
need("B28", torch.allclose(biased, 2.5 * bare / bare.sum(-1, keepdim=True)))
mixed = (score + high).where(taken, 0.0)
need("B28", float((2.5 * mixed / mixed.sum(-1, keepdim=True) - biased).abs().max()) > 0.3)
def by_zero(bias):
    choice = (score + bias).unflatten(-1, (4, 4))
    best = choice.topk(2)[0].sum(-1).topk(2)[1]
    lost = torch.ones(400, 4).scatter(1, best, 0)[..., None] == 1
    return choice.masked_fill(lost, 0.0).flatten(-2).topk(4)[1].sort(-1)[0]
def right(bias):
    return twin.routed(router(), logits, bias)[0].topk(4)[1].sort(-1)[0]
low = 0.5 * rand(16) - 2
need("B29", float((by_zero(low) != right(low)).any(-1).double().mean()) > 0.5)
need("B29", bool((by_zero(high) == right(high)).all()))
vanished = torch.full((1, 16), -2000.0, dtype=torch.float64)
need("B31", bool(twin.routed(router(), vanished, high)[0].isfinite().all()))
for factor in (1.0, 2.5, 16.0):
    for normed in (True, False):
        asked = router(norm_topk_prob=normed, routed_scaling_factor=factor)
        found = twin.routed(asked, logits, high)[0]
        total = factor if normed else factor * bare.sum(-1)
        need("B32", torch.allclose(found.sum(-1), torch.as_tensor(total, dtype=torch.float64).expand(400)))
# A latent of 576 rows in blocks of 128: the last block is ragged, and the query must come first.
def blocks(rows):
    return -(-rows // 128)
def expand(scale, rows):
    return scale.repeat_interleave(128, 0)[:rows]
qa, kva, sq, sk = rand(256, 64), rand(192, 64), rand(2, 1).abs(), rand(2, 1).abs()
apart = torch.cat((qa * expand(sq, 256), kva * expand(sk, 192)))
fused = torch.cat((qa, kva)) * expand(torch.cat((sq, sk)), 448)
need("B15", blocks(576) == 5 and torch.allclose(fused, apart))
turned = torch.cat((kva, qa)) * expand(torch.cat((sk, sq)), 448)
need("B15", not torch.allclose(torch.cat((turned[192:], turned[:192])), apart))
# An unquantised kv_b is what its own product makes of the unit matrix; absorbed, it gives the same attention.
codes, scale = torch.randint(-8, 8, (2 * 14, 96), generator=draw).double(), rand(28, 3).abs()
def product(x):
    return x @ (codes * scale.repeat_interleave(32, 1)).T
dense = product(torch.eye(96, dtype=torch.float64)).T
need("B13", torch.equal(dense, codes * scale.repeat_interleave(32, 1)))
need("B61", torch.allclose((codes.float() * scale.float().repeat_interleave(32, 1)).double(), dense, rtol=1e-6))
part = dense.view(2, 14, 96)
uk, uv, c, qn = part[:, :8], part[:, 8:], rand(9, 96), rand(9, 2, 8)
def attend(scores, values):
    shares = (scores / 10).masked_fill(twin.future(9), -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", shares, values)
full = product(c).view(9, 2, 14)
plain_heads = attend(torch.einsum("qhd,khd->hqk", qn, full[..., :8]), full[..., 8:])
absorbed = torch.einsum("qhd,hdr->qhr", qn, uk)
latent = attend(torch.einsum("qhr,kr->hqk", absorbed, c), c[:, None].expand(9, 2, 96))
need("B13", torch.allclose(torch.einsum("qhr,hdr->qhd", latent, uv), plain_heads))
# Distributions are told apart, and the tokens that temperature and top-p leave are the fewest best.
right_ = probing.nucleus(5 * rand(512), 0.3, 0.8)
need("nucleus", abs(float(right_.sum()) - 1) < 1e-12 and 0 < int((right_ > 0).sum()) < 512)
drawn = torch.multinomial(right_, 384, replacement=True, generator=draw)
need("drawn", probing.deviation(drawn, right_) < 6)
need("drawn", probing.deviation(torch.randint(0, 512, (384,), generator=draw), right_) > 100)
# What each token was drawn from counts, not what the model should have given: two routers are no wrong sampler.
def sampler(temperature):
    logits = 5 * rand(2, 512).repeat_interleave(192, 0)
    first = torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw).squeeze(1)
    asked = {"temperature": torch.tensor(0.7), "top_p": torch.tensor(1.0)}
    drawn = {"first": first, "again": first, "other": first[:32] + 1, "logits": logits, **asked}
    return probing.sampled(drawn, {}, None)
found = sampler(0.7)
need("sampled", found["deviation"] < 6 and found["repeated"] and found["varied"])
need("sampled", sampler(1.0)["deviation"] > 20)
both = {"prefill": torch.tensor([-1.0, -2.0]), "decode": torch.tensor([-1.0, float("nan")])}
need("selfkl", probing.selfkl(both, {}, None) == [0.0, math.inf])
print(json.dumps(blind))
"""


def test_the_right_values_of_known_bugs() -> None:
    standing = oracle.ensure()
    golden = standing.golden([small.case("deepseek-v3")])[0]
    assert ask(standing, golden, CASES, "short") == []


# Of the sparse model only what the others have not: its indexer's.
@pytest.mark.parametrize("name", [*MODELS, SPARSE])
def test_every_tensor_matters(name: str) -> None:
    standing = oracle.ensure()
    golden = standing.golden([small.case(name)])[0]
    assert ask(standing, golden, TENSORS, "odd") == []


@pytest.mark.parametrize("name", [*MODELS, SPARSE])
def test_the_oracle_would_be_seen_to_be_wrong(name: str) -> None:
    standing = oracle.ensure()
    golden = standing.golden([small.case(name)])[0]
    limit = tolerance.table()["oracle.sane", "float32", "cpu"].limit
    found = ask(standing, golden, FACTS, "odd")
    assert isinstance(found, dict)
    assert len(found) >= 6
    assert all(difference > 1e4 * limit for difference in found.values()), found


def test_measures_say_what_they_should() -> None:
    standing = oracle.ensure()
    golden = standing.golden([small.case("deepseek-v3")])[0]
    # One process for all of them: importing torch is what takes the time.
    assert ask(standing, golden, PLACES + RULES + WAYS + METRICS, "short") == []


@pytest.mark.parametrize("name", [*MODELS, "deepseek-v3/no-dense"])
def test_operations_are_held_against_what_their_own_input_gives(name: str) -> None:
    standing = oracle.ensure()
    [golden] = standing.golden([small.case(name)])
    assert ask(standing, golden, OPERATIONS, "short") == []


def test_a_checkpoint_of_one_s_own_is_read_as_it_is_meant_and_its_faults_are_named() -> None:
    standing = oracle.ensure()
    golden = standing.golden([small.case("deepseek-v3")])[0]
    # One process for both, as above.
    assert ask(standing, golden, GIVEN + STORED, "short") == []


def test_an_operation_has_one_name_for_all_who_look_at_it() -> None:
    golden = oracle.ensure().golden([small.case("deepseek-v3")])[0]
    with safe_open(golden.path, "np") as file:
        kept = {name.rpartition(".")[2] for name in file.keys() if ".place." in name}  # noqa: SIM118
    # What the router did is judged as two operations.
    assert kept - {"router"} <= causes.knowledge().places.keys()
    assert watching.OUTPUTS.keys() <= kept


def test_golden_results_are_computed_once() -> None:
    standing, case = oracle.ensure(), small.case("deepseek-v3")
    standing.golden([case])
    said: list[str] = []
    again = standing.golden([case], said.append)[0]
    assert again.path.is_file()
    assert said == []


def test_a_checkpoint_has_the_same_bytes_wherever_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing, case = oracle.ensure(), small.case("deepseek-v2-lite")
    first = standing.golden([case])[0].checkpoint.weights.read_bytes()
    monkeypatch.setenv("DSPATCH_CACHE", str(tmp_path / "elsewhere"))
    made = checkpoint.of(case, written_with=standing.identity)
    standing.work([made.task()])
    assert made.path.is_relative_to(paths.cache())
    assert made.weights.read_bytes() == first


def test_a_checkpoint_in_bfloat16_is_the_float32_one_rounded_once_and_judged_as_sane() -> None:
    standing, cases = oracle.ensure(), ["deepseek-v3", "deepseek-v3/bfloat16"]
    plain, narrow = standing.golden([small.case(name) for name in cases])
    files = [
        str(path) for path in (plain.checkpoint.weights, narrow.checkpoint.weights, narrow.path)
    ]
    done = process.run([str(standing.python), "-c", ROUNDED, *files])
    assert done.stdout.strip() == "whole"
    said = json.loads((narrow.checkpoint.given / "config.json").read_text())
    assert said["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "name", ["deepseek-v3/saved", "deepseek-v3/fp8", "deepseek-v3/sixteen-heads/bfloat16"]
)
def test_golden_results_taken_along_serve_a_machine_that_makes_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing, case = oracle.ensure(), small.case(name)
    there = standing.golden([case])[0]
    done = prepare.run([case], tmp_path / "taken", Console(as_json=False))
    assert done.models == (case.name,)
    monkeypatch.setenv("DSPATCH_CACHE", str(tmp_path / "taken"))
    monkeypatch.setenv("DSPATCH_ORACLE", str(standing.python))
    # That Python has the pinned transformers, and would make them.
    assert oracle.ensure().makes
    other = replace(oracle.ensure(), makes=False)
    here = other.golden([case])[0]
    made = [path.relative_to(there.checkpoint.path) for path in there.checkpoint.path.rglob("*.*")]
    assert {"model.safetensors", "config.json", "oracle.json"} <= {path.name for path in made}
    assert (here.checkpoint.given / "model.safetensors").is_file()
    for path in made:
        own = here.checkpoint.path / path
        assert own.is_relative_to(tmp_path)
        assert own.read_bytes() == (there.checkpoint.path / path).read_bytes()
    assert here.path.read_bytes() == there.path.read_bytes()
    # Planted: a numpy that draws other numbers gives another hash.
    shutil.rmtree(here.checkpoint.path)
    recipe = json.loads(here.checkpoint.recipe.read_text())
    here.checkpoint.recipe.write_text(json.dumps({**recipe, "seed": 1}))
    with pytest.raises(CheckpointError, match="did not finish") as caught:
        other.golden([case])
    assert "draws other weights" in caught.value.why
    assert not here.checkpoint.path.exists()


def test_transformers_own_config_drops_what_it_does_not_know() -> None:
    standing = oracle.ensure()
    saved = standing.golden([small.case("deepseek-v3/saved")])[0].checkpoint
    written = json.loads((saved.path / "config.json").read_text())
    assert not {"topk_method", "scoring_func"} & written.keys()
    assert written["rope_parameters"]["rope_type"] == "yarn"
