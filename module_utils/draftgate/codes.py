"""Every code that a message can carry: its title, what it means, and what to do.

A code never changes its meaning, and a retired one is not used again: operators write them into
``drafter_accept_findings`` with a reason. A test holds this table against the codes that are raised.
"""

from __future__ import annotations

from typing import Dict, NamedTuple


class Code(NamedTuple):
    """One row: a title of a few words, what is wrong and what it does, what to set or type."""

    title: str
    meaning: str
    fix: str


CODES: Dict[str, Code] = {
    # 2xx: the drafter's config and weights
    "DG201": Code(
        "The drafter has no config.json",
        "The weights do not tell the mask token, the target layers or the rope it was trained with.",
        "Take config.json from the drafter's own revision, or give all of it as drafter_overrides.",
    ),
    "DG202": Code(
        "The drafter's config.json cannot be read",
        "It is not a JSON object in UTF-8, so none of its fields can be judged.",
        "Fetch the file again.",
    ),
    "DG203": Code(
        "No mask token",
        "The engine fills every slot to be drafted with this row of the target's embedding.",
        "Set dflash_config.mask_token_id to the value of the drafter's revision.",
    ),
    "DG204": Code(
        "A field has the wrong type",
        "A number in quotes, a bool or a list where a number belongs: engines read it differently or crash.",
        "Correct the field, in the source or by drafter_overrides.",
    ),
    "DG205": Code(
        "The mask is no row of the target's embedding",
        "The row reads as zeros under tensor parallelism and out of bounds without: nothing is accepted, or "
        "the engine dies at the first request.",
        "Set dflash_config.mask_token_id to a row of the target's embedding.",
    ),
    "DG206": Code(
        "The mask is the target's bos, eos or pad",
        "The row means something else to the target: τ stays near 1 while the server looks healthy.",
        "Set dflash_config.mask_token_id to the value of the drafter's revision.",
    ),
    "DG207": Code(
        "The mask is an ordinary piece of text",
        "Every published mask is an added token or an unused row. An ordinary piece is what an id of another "
        "tokenizer becomes.",
        "Set dflash_config.mask_token_id to the value of the drafter's revision.",
    ),
    "DG208": Code(
        "The mask token is where the engine does not read it",
        "Engines before vLLM 0.32 read dflash_config.mask_token_id and nothing else.",
        "Set dflash_config.mask_token_id by drafter_overrides.",
    ),
    "DG209": Code(
        "The drafter's architecture is not DFlash",
        "The engine's method and the drafter do not match: it does not load, or τ is exactly 1.",
        "Set architectures to [DFlashDraftModel] if the weights are DFlash, else use another drafter.",
    ),
    "DG211": Code(
        "No target layer ids",
        "vLLM silently takes its EAGLE3 layers, SGLang a formula that is right for 6 of 20 published pairs.",
        "Set dflash_config.target_layer_ids to the value of the drafter's revision.",
    ),
    "DG212": Code(
        "A target layer id is out of range",
        "The engine reports healthy and dies at the first request.",
        "Use 0-based ids below the target's number of layers.",
    ),
    "DG213": Code(
        "A target layer id is there twice",
        "The engine removes the duplicate, and the count no longer fits fc.weight.",
        "Name each layer once.",
    ),
    "DG214": Code(
        "The number of target layer ids does not fit fc.weight",
        "fc.weight has one block of columns, as wide as the target, for each captured layer.",
        "Use the drafter's own ids, or the target it was trained for.",
    ),
    "DG215": Code(
        "The target layer ids do not follow the usual spacing",
        "18 of 20 published pairs follow it; the config wins, but a guessed list looks like this.",
        "Compare with the drafter's own config.json; nothing to do if they agree.",
    ),
    "DG216": Code(
        "SGLang cannot capture the target's last layer",
        "SGLang counts ids from 1 inside: the last layer is an IndexError at the start.",
        "Serve with vLLM, or correct the ids if they were guessed.",
    ),
    "DG217": Code(
        "The drafter was trained for a target of another depth",
        "num_target_layers names the depth of the target that the drafter belongs to.",
        "Use the target that the drafter's model card names.",
    ),
    "DG221": Code(
        "The config does not describe the weights",
        "A size in the config, or the engine's default for an absent one, differs from the tensors.",
        "Set the field to what the weights have.",
    ),
    "DG222": Code(
        "The drafter is not as wide as the target",
        "The drafter uses the target's embedding and lm_head: both have one hidden size.",
        "Use the target that the drafter's model card names.",
    ),
    "DG223": Code(
        "Tensors are missing or have other shapes",
        "Layers that do not load stay random in some engines.",
        "Fetch the weights again; a quantised drafter needs an engine that reads its format.",
    ),
    "DG224": Code(
        "More tokens are drafted than a block has",
        "The engine accepts it silently; positions beyond the trained block are never right.",
        "Set num_speculative_tokens to block_size - 1 or less.",
    ),
    "DG225": Code(
        "The block size is not known",
        "How many tokens a step may draft cannot be judged.",
        "Set block_size to the value of the drafter's revision.",
    ),
    "DG226": Code(
        "Drafter and target differ in vocabulary",
        "The target's lm_head is not shared then: τ 1.00 and no position is ever accepted.",
        "Set vocab_size to the target's, or use the target that the drafter belongs to.",
    ),
    "DG227": Code(
        "The drafter's config has no rope theta",
        "vLLM silently takes 1e6, transformers 1e4; a wrong one costs nearly all acceptance.",
        "Set rope_theta to the value of the drafter's revision, usually the target's.",
    ),
    "DG228": Code(
        "The drafter's rope theta differs from the target's",
        "Published drafters have the target's; a wrong one costs nearly all acceptance.",
        "Compare with the drafter's own config.json.",
    ),
    "DG229": Code(
        "Two rope thetas disagree",
        "Which one counts depends on the engine's transformers, so an override of one may do nothing.",
        "Set both, or remove one with null.",
    ),
    "DG230": Code(
        "Requests can be longer than the drafter reaches",
        "vLLM drafts nothing in every step that holds a longer request, for all requests in it.",
        "Lower max_model_len, or accept it for long requests.",
    ),
    "DG231": Code(
        "A weights file cannot be read",
        "It is truncated, a Git LFS pointer, a directory, or not safetensors.",
        "Fetch the file again.",
    ),
    "DG232": Code(
        "A weights file is missing",
        "The index names a file that is not in the directory.",
        "Fetch the missing file.",
    ),
    "DG233": Code(
        "There are no weights",
        "The directory has no safetensors file.",
        "Fetch the weights.",
    ),
    # 3xx: tokenizer
    "DG301": Code(
        "The target's tokenizer cannot be read",
        "A file of it is empty, truncated or not JSON; the engine could not start with it either.",
        "Fetch the file again.",
    ),
    "DG302": Code(
        "The target has no tokenizer.json",
        "Ids are judged by their range and by the config alone.",
        "Nothing, if the target brings another kind of tokenizer.",
    ),
    # 4xx: engine version
    "DG401": Code(
        "The engine does not know DFlash",
        "It is older than the first version with the method.",
        "Use vLLM 0.26.0 or later, or SGLang 0.5.14 or later.",
    ),
    "DG402": Code(
        "The engine reads the target's layers one too early",
        "Costs 3 to 16 % of τ (vllm#40727).",
        "Use vLLM 0.22.0 or later.",
    ),
    "DG403": Code(
        "The engine ignores the drafter's windows",
        "Windowed layers run as full attention: fine while short, then acceptance decays.",
        "Use vLLM 0.26.0 or later, or SGLang 0.5.14 or later.",
    ),
    "DG404": Code(
        "The engine refuses layers of which some have a window",
        "It does not start.",
        "Use vLLM 0.26.0 or later.",
    ),
    "DG405": Code(
        "The engine cannot run DFlash on a CPU",
        "The CPU's attention kernel has no non-causal mode in this version.",
        "Use vLLM 0.28.0 or later on a CPU.",
    ),
    "DG406": Code(
        "The CPU engine refuses layers of which some have a window",
        "They need the V2 model runner, which does not run on a CPU.",
        "Serve this drafter on a GPU.",
    ),
    # 6xx: models and hub
    "DG601": Code(
        "A model is not a readable directory",
        "The path is missing, is a file, or holds nothing that an engine would read.",
        "Set target_path or drafter_path to the model's directory on the host.",
    ),
    "DG602": Code(
        "A model holds something that cannot be copied",
        "A device, a socket, a link that leaves the directory, or a name that is not UTF-8.",
        "Copy the model to a plain directory (cp -rL) and name that.",
    ),
    "DG603": Code(
        "No room for a model",
        "The store's file system has less free than the copy needs.",
        "Free some, or set draftgate_home to a larger file system.",
    ),
    "DG604": Code(
        "A model changed while it was read",
        "The copy would be a mix of two states, so it is not used.",
        "Wait until whatever writes there is done and run again.",
    ),
}
