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
    # 1xx: the host
    "DG150": Code(
        "The runtime is for another platform",
        "The lock holds wheels of one operating system and processor architecture.",
        "Name a lock for this platform in vllm_runtime_lock, or make one (locks/README.md).",
    ),
    "DG151": Code(
        "The processor lacks instructions that the engine uses",
        "The engine's kernels would die with SIGILL.",
        "Use a newer processor, or show the guest the host's own (CPU type 'host').",
    ),
    "DG152": Code(
        "The C library is too old",
        "A wheel is built against a newer glibc and would not load.",
        "Use a newer release of the distribution.",
    ),
    "DG153": Code(
        "A shared library is missing",
        "The engine says so in one warning, and its worker dies at the first step.",
        "Install the package that holds it (libnuma.so.1: libnuma1).",
    ),
    "DG154": Code(
        "/dev/shm is too small",
        "The engine's processes share memory there; it refuses to start with less.",
        "Enlarge it: mount -o remount,size=1G /dev/shm, in a container --shm-size=1g.",
    ),
    "DG155": Code(
        "No room for the runtime",
        "The environment, its wheels and pip's cache need more than is free.",
        "Free some, or set vllm_runtime_root to a larger file system.",
    ),
    "DG156": Code(
        "Two engines do not fit beside each other",
        "What both take of a GPU or of the host's memory is more than there is: see the message's figures.",
        "Set draftgate_strategy to in_place, or do as the message says to make them fit.",
    ),
    "DG157": Code(
        "No front for a switch beside the release that serves",
        "Clients know the engine's own address, so a second engine could not take over from the first.",
        "Set gateway_enabled to true, or draftgate_strategy to in_place.",
    ),
    "DG158": Code(
        "A GPU is not free for the engine that is to start",
        "Somebody holds its memory a minute after the last engine was stopped; vLLM would refuse to start.",
        "End the process that the message names, or lower gpu_memory_utilization.",
    ),
    "DG160": Code(
        "The engine's user cannot reach the installation",
        "Under systemd it does not see /root, /home and /tmp.",
        "Set draftgate_home to auto, and vllm_runtime_root below /var.",
    ),
    "DG161": Code(
        "The engine's user cannot be used",
        "It is root, no name of a user, or gone from the host.",
        "Set draftgate_user to a user of its own; a deploy creates it.",
    ),
    "DG170": Code(
        "nginx refuses its configuration",
        "The front's file, or another one of this nginx, is wrong; what was in force before still is.",
        "The message has nginx's own words; nginx -t says them again.",
    ),
    "DG171": Code(
        "nginx does not bring the front into force",
        "Its public address is somebody else's, or nginx could not be told; what was in force goes on.",
        "Free the address or set gateway_port; nginx's error log says more.",
    ),
    "DG172": Code(
        "The front does not lead to the engine",
        "nginx is down and does not start, or what answers at the public address is not this front.",
        "Deploy again, which repairs the front; nginx -t and its error log say more.",
    ),
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
        "A number in quotes, a bool or null where a number belongs: engines read it otherwise or not at all.",
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
    "DG210": Code(
        "The mask token is stated twice, and differently",
        "Engines and versions differ in which place counts, so the mask depends on who reads the config.",
        "Leave one place, with the value of the drafter's revision.",
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
    "DG218": Code(
        "mask_embedding.pt cannot be used",
        "It is no file of torch.save, asks to run code, has another width or another mask id, or is zero.",
        "Fetch the file and config.json again from one revision of the drafter.",
    ),
    "DG219": Code(
        "A published drafter of exactly these shapes says otherwise",
        "The public record has another mask, other target layers, block, windows or rope theta for it. One "
        "repository has had revisions with different values, so this is a hint.",
        "Compare with the config.json of the revision that the weights are of.",
    ),
    "DG220": Code(
        "The target layer ids are not in ascending order",
        "Engines capture layers in ascending order, and fc's columns are in the order of training.",
        "Compare with the drafter's own config.json; all published lists ascend.",
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
        "The engine silently takes transformers' 10000; a wrong theta costs nearly all acceptance.",
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
        "With a longer one vLLM's V1 runner drafts nothing in that step; V2 reads past the drafter's rope.",
        "Lower max_model_len.",
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
    "DG234": Code(
        "Dtypes disagree",
        "Of the tensors among themselves, of tensors and config, or of drafter and target, in whose dtype "
        "vLLM runs the drafter: float16 for bfloat16 loses range.",
        "Fetch the weights again, or use the target in the drafter's dtype.",
    ),
    "DG235": Code(
        "The window keys do not work together",
        "layer_types, sliding_window and use_sliding_window count together or not at all: without one of "
        "them the engine refuses the drafter, or runs its windowed layers as full attention.",
        "Set all three to the values of the drafter's revision.",
    ),
    "DG236": Code(
        "A field is absent, and the engine assumes a value silently",
        "An info where the assumed value is what the weights or the target show, else a warning.",
        "Set the field to the value of the drafter's revision.",
    ),
    "DG237": Code(
        "The rope scaling is wrong or not the target's",
        "An unknown kind, a missing or senseless factor, a part of the target's rope that a drafter does not "
        "have: the engine does not start, or positions mean something else than in training.",
        "Set rope_scaling to the value of the drafter's revision.",
    ),
    "DG238": Code(
        "The norm's epsilon or the activation is implausible",
        "No model has such an epsilon; vLLM's drafter runs silu and no other activation.",
        "Set the field to the value of the drafter's revision.",
    ),
    "DG239": Code(
        "Quantised tensors and config do not belong together",
        "Engines leave at random what they cannot unpack, or refuse a drafter that is not packed.",
        "Use the unquantised drafter, or the config.json that belongs to the weights.",
    ),
    "DG241": Code(
        "The weights are of another kind of drafter",
        "EAGLE, Medusa, MTP, DSpark or a whole language model, by the names of the tensors.",
        "Use a DFlash drafter; Draftgate serves no other method.",
    ),
    "DG242": Code(
        "There are tensors that no DFlash drafter has",
        "vLLM stops at a tensor that it has no place for; other engines skip it.",
        "Fetch the weights again, or use an engine that knows this drafter.",
    ),
    "DG243": Code(
        "The drafter's heads cannot be divided",
        "Among key-value heads, or among the GPUs of tensor_parallel_size, which the drafter shares.",
        "Set another tensor_parallel_size, or correct the config.",
    ),
    "DG244": Code(
        "The block size is implausible",
        "Published blocks have 8, 10 or 16 tokens; or it is stated twice, and differently.",
        "Compare with the drafter's own config.json.",
    ),
    "DG246": Code(
        "The config names no model type, or another one",
        "It decides which config class reads the fields, and what an absent one becomes.",
        "Set model_type to qwen3, as published DFlash drafters have it.",
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
    "DG303": Code(
        "The drafter's own tokenizer is not the target's",
        "Engines use the target's; another one beside the drafter says that it belongs to another target.",
        "Check that drafter and target belong together; the files themselves do no harm.",
    ),
    "DG304": Code(
        "The target's tokenizer is SentencePiece alone",
        "Its pieces are in a file that only sentencepiece reads: an ordinary piece as the mask is not seen.",
        "Nothing, or write a tokenizer.json: AutoTokenizer.from_pretrained(…).save_pretrained(…) with "
        "transformers, sentencepiece and protobuf.",
    ),
    "DG305": Code(
        "The target's tokenizer is tiktoken or code alone",
        "Its pieces are in ranks, or in Python that is not run: an ordinary piece as the mask is not seen.",
        "Nothing, or write a tokenizer.json where transformers can convert it; that needs tiktoken.",
    ),
    "DG306": Code(
        "The tokenizer is longer than the target's embedding",
        "An id without a row of the target reads out of bounds. A config.json of another target "
        "looks like this.",
        "Take config.json and the tokenizer's files from one revision of one target.",
    ),
    "DG307": Code(
        "A role names a token that no file lists",
        "transformers gives it the first row after the tokenizer, which is the mask's row of Qwen3 drafters.",
        "Take all of the tokenizer's files from one revision.",
    ),
    "DG308": Code(
        "The tokenizer's files disagree about an added token",
        "Which one counts depends on the engine's transformers.",
        "Take all of the tokenizer's files from one revision.",
    ),
    "DG309": Code(
        "The rows of the target's embedding are not known",
        "No config.json with vocab_size is there, so no id is judged by its range.",
        "Name the target's config.json.",
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
    "DG407": Code(
        "The V2 model runner accepts nothing",
        "vLLM 0.25 on the V2 runner: 0 % in a public report, and right on V1 (vllm#49559).",
        "Set VLLM_USE_V2_MODEL_RUNNER to 0 in vllm_environment, or use vLLM 0.26.0 or later.",
    ),
    "DG408": Code(
        "The model runner does not fit the drafter",
        "Windows on some layers and DFlash2 need the V2 runner: the engine refuses to start with another.",
        "Remove VLLM_USE_V2_MODEL_RUNNER from vllm_environment; on a CPU there is no such runner.",
    ),
    "DG409": Code(
        "Acceptance may fall after a cached prefix",
        "The drafter's keys come from hidden states, which a cached prefix does not have (vllm#47930).",
        "Send one long prefix twice; set enable_prefix_caching to false if the second is drafted worse.",
    ),
    "DG410": Code(
        "No attention backend reads this KV cache",
        "A quantised cache needs a backend that reads it and is non-causal, on this GPU.",
        "Set kv_cache_dtype to auto.",
    ),
    "DG411": Code(
        "The drafter shares a quantised KV cache",
        "Its keys are stored at scale 1.0, for which nothing was calibrated (vllm#41789).",
        "Set kv_cache_dtype to auto, or accept it and let the gate measure.",
    ),
    "DG412": Code(
        "No attention backend for the drafter's head_dim",
        "head_dim 256 with non-causal attention has no backend below sm_90 before vLLM 0.24 (vllm#40382).",
        "Use vLLM 0.24.0 or later.",
    ),
    "DG413": Code(
        "The attention backend is not non-causal",
        "A drafter attends in both directions; TRITON_ATTN and FLASHINFER can from vLLM 0.24 on.",
        "Leave the backend to the engine, or use FLASH_ATTN.",
    ),
    "DG414": Code(
        "The engine does not know DFlash2",
        "The candidate selector and the convolutions of the drafter are not used.",
        "Use vLLM 0.28.0 or later.",
    ),
    "DG415": Code(
        "The engine leaves the drafter without an lm_head",
        "vLLM 0.24's V2 runner shares the target's only where the vocabularies have one size (vllm#46435).",
        "Use vLLM 0.25.0 or later.",
    ),
    "DG416": Code(
        "The engine skips the drafter's quantised tensors",
        "fc stays random: 1.4 % accepted, τ 1.10 (sglang#39087).",
        "Use the unquantised drafter.",
    ),
    "DG417": Code(
        "The drafter was trained on another precision of the target",
        "A target of 4-bit integers has other hidden states; the cost differs by family, 0 % was seen.",
        "Use the drafter that belongs to the quantised target, where there is one.",
    ),
    "DG418": Code(
        "A full step has no room for all drafts",
        "The scheduler trims drafts at its token budget, so that acceptance depends on the load.",
        "Raise max_num_batched_tokens, or lower max_num_seqs or num_speculative_tokens.",
    ),
    "DG419": Code(
        "A step has no room for one draft",
        "The engine does not start.",
        "Raise max_num_batched_tokens above num_speculative_tokens.",
    ),
    "DG420": Code(
        "Tree verification is not the cause",
        "The reference and all published numbers verify a linear chain; no engine has a tree for DFlash.",
        "Nothing: look at the other findings.",
    ),
    "DG421": Code(
        "The engine does not read mask_embedding.pt",
        "The slots to be drafted get the target's own row instead of the trained one: acceptance collapses.",
        "Use vLLM 0.25.0 or later.",
    ),
    "DG423": Code(
        "flash-attn-4 without flash-attn",
        "vLLM up to 0.23 takes it for flash-attn and fails to import its rotary embedding.",
        "Install flash-attn first and flash-attn-4 after it, or remove flash-attn-4.",
    ),
    "DG424": Code(
        "The speculative method is not DFlash",
        "The engine runs other code on the drafter's weights: it does not load, or τ is exactly 1.",
        "Set the method to dflash.",
    ),
    "DG425": Code(
        "The engine is not known to read the speculators format",
        "Mask token and target layers are at the top of the config, where it may not look.",
        "Serve with vLLM.",
    ),
    "DG426": Code(
        "The block and num_speculative_tokens disagree",
        "SGLang counts the anchor among its draft tokens, vLLM does not.",
        "Set speculative_num_draft_tokens to num_speculative_tokens + 1.",
    ),
    "DG427": Code(
        "The engine is newer than the table of engines",
        "What this version does was not looked at; the rules for the newest known one are used.",
        "Nothing; the gate measures what it is worth.",
    ),
    # 5xx: the engine runtime
    "DG500": Code(
        "The runtime lock or a wheel directory cannot be used",
        "A line is no hashed pin, the header lacks a key, it is cut short, or find_links names no directory.",
        "Restore the file, or resolve it anew with locks/regenerate.py.",
    ),
    "DG501": Code(
        "The interpreter is not the lock's",
        "Wheels are built for one version of Python; or the interpreter could not be run at all.",
        "Set vllm_runtime_python to an interpreter of that version, or make a lock for this one.",
    ),
    "DG502": Code(
        "The interpreter cannot make an environment",
        "venv or ensurepip is missing, which Debian ships apart, or making it failed.",
        "Install python3-venv.",
    ),
    "DG503": Code(
        "Another installer is at work",
        "It has held the runtime's lock for longer than one waits.",
        "See who holds it (fuser -v) and run again.",
    ),
    "DG504": Code(
        "A wheel is not the locked one",
        "The file that an index or a directory offers has another hash than the lock pins.",
        "Repair that mirror or directory, or take it out of pip's configuration.",
    ),
    "DG505": Code(
        "A wheel is on no configured index",
        "torch's CPU build, for one, is not on the ordinary index.",
        "Set vllm_runtime_extra_index, or put the wheel into a directory of vllm_runtime_find_links.",
    ),
    "DG506": Code(
        "A package index does not answer",
        "pip gave up after its last try.",
        "Check the network, the proxy and pip's configuration and run again: pip keeps what was fetched.",
    ),
    "DG507": Code(
        "pip failed",
        "For a reason of its own, which the message quotes.",
        "Do as pip says and run again.",
    ),
    "DG508": Code(
        "The installed runtime cannot be imported",
        "The engine, torch or the engine's kernels do not load on this host; nothing was put into use.",
        "Read the traceback in the details.",
    ),
    "DG509": Code(
        "The runtime's directory cannot be written",
        "It is read-only, belongs to somebody else, or is in the way as a file.",
        "Set vllm_runtime_root to a directory that can be written.",
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
    # 7xx: the launch
    "DG701": Code(
        "The port is taken",
        "Somebody listens there; the engine would notice only after loading, or not at all (vllm#9737).",
        "Stop the holder that the message names, or set vllm_port.",
    ),
    "DG702": Code(
        "Out of memory",
        "Host memory, GPU memory, the KV cache or /dev/shm.",
        "Lower max_model_len, max_num_seqs or gpu_memory_utilization.",
    ),
    "DG703": Code(
        "The engine refused the pair",
        "A contract error raised inside the engine while it loaded the drafter.",
        "Correct the field that the message names.",
    ),
    "DG704": Code(
        "The engine refused an argument",
        "An unknown option, or a value that it does not take.",
        "Correct vllm_server_args.",
    ),
    "DG705": Code(
        "The engine does not import",
        "A library or a symbol is missing in its environment.",
        "Install the library, or the runtime anew.",
    ),
    "DG706": Code(
        "The engine died at its first request",
        "It was healthy: a layer id or a mask out of range looks like this.",
        "Compare the drafter's config with its own revision.",
    ),
    "DG707": Code(
        "The engine did not come up in time",
        "It lives and does not answer yet.",
        "Raise draftgate_switch_time_limit, or look at its log.",
    ),
    "DG708": Code(
        "The engine died",
        "For a reason that its log does not say in words we know.",
        "Read the last log lines.",
    ),
    # 8xx: the gate
    "DG801": Code(
        "No drafts at all",
        "Tokens flowed and the engine drafted nothing: speculation never engaged.",
        "Look for the speculative config in the engine's log, and at num_speculative_tokens_per_batch_size.",
    ),
    "DG802": Code(
        "The mean acceptance length is too low",
        "τ, the tokens a step yields, is below acceptance_min_mean_length.",
        "Look at the suspects in their order.",
    ),
    "DG803": Code(
        "The acceptance rate is too low",
        "Accepted by drafted tokens is below acceptance_min_rate; what a rate is worth depends on k.",
        "Look at the suspects in their order.",
    ),
    "DG804": Code(
        "Position 1 is accepted too rarely",
        "The first drafted token is the easiest; below acceptance_min_position_1 it lacks its conditioning.",
        "Look at the suspects in their order.",
    ),
    "DG805": Code(
        "Acceptance fell against the last green release",
        "τ over the common positions is more than acceptance_max_regression below the last green evidence.",
        "Look at what changed since: it is the first suspect.",
    ),
    "DG806": Code(
        "The speed-up is too small, or unknown",
        "Below acceptance_min_speedup; without a measured baseline it cannot be judged.",
        "Gate at the concurrency of your traffic; try a smaller num_speculative_tokens.",
    ),
    "DG811": Code(
        "Not enough samples",
        "Fewer drafts than acceptance_min_drafts, although the prompts were gone over several times.",
        "Add prompts or longer answers, or lower acceptance_min_drafts.",
    ),
    "DG821": Code(
        "The engine has no speculative counters",
        "It runs without a speculative config, or with disable_log_stats: nothing can be proven.",
        "Look at the engine's first log lines.",
    ),
    "DG822": Code(
        "The counters cannot be trusted",
        "They cannot be read, contradict themselves, have another k, or know less than our own requests.",
        "One engine of a supported version has to answer at this address; measure again.",
    ),
    "DG823": Code(
        "Foreign traffic",
        "Too much of what the engine counted meanwhile was not ours.",
        "Measure again while nobody else uses the engine.",
    ),
    "DG824": Code(
        "The engine restarted during the measurement",
        "A counter went backwards.",
        "Its log says why it died; then measure again.",
    ),
    "DG825": Code(
        "The engine did not answer a request",
        "A mask or a layer id out of range leaves vLLM healthy until the first request kills it.",
        "The engine's log says why.",
    ),
    "DG826": Code(
        "No token was generated",
        "Every answer was empty.",
        "Ask the engine by hand; look at the chat template and the model's stop tokens.",
    ),
    "DG827": Code(
        "An answer took too long",
        "The engine lives and gives no answer: it hangs, is stopped, or has too much to do.",
        "Its log says what it did last; then measure again.",
    ),
    "DG830": Code(
        "Refused by its own record",
        "This release was measured under this gate before and failed; another try would stop the server.",
        "Change the wish, or measure it once more with -e acceptance_retry=true.",
    ),
    "DG831": Code(
        "One kind of prompts is below the minimum on its own",
        "Acceptance differs by more than 2x between kinds of text; the verdict is by all of them.",
        "Look at the prompts of this workload.",
    ),
    "DG832": Code(
        "Answers repeat one unit to the end",
        "Repetition is easy to draft, so acceptance says nothing about useful text.",
        "Read an answer.",
    ),
    "DG833": Code(
        "The last green evidence cannot be compared with",
        "It has no per-position rates.",
        "Nothing; the next green gate is a reference again.",
    ),
}
