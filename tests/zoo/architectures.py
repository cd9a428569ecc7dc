"""Architectures of transformers in tiny configurations: their classes, and what differs from common settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.trial import Specimen

WIDTH, VOCABULARY = 48, 40
COMMON = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers", "encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("num_decoder_layers", "type_vocab_size"), 2),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "num_attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "d_inner"), 56),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), 56),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_size"), 24),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 32),
    "vocab_size": VOCABULARY, "image_size": 16, "patch_size": 8, "num_channels": 3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "mask_time_prob": 0.0,
}  # fmt: skip
TWO = {"depths": [1, 1], "hidden_sizes": [16, 24]}
SWIN = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4}
PYRAMID = TWO | {"num_attention_heads": [1, 2], "strides": [2, 2], "mlp_ratios": [2, 2], "num_encoder_blocks": 2}
SPEECH = {
    "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
SPARSE = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "expert_capacity": 32}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}

# The class of each model, its configuration, and settings.
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "AlbertModel": ("albert", {}),
    "BertModel": ("bert", {}),
    "BertForMaskedLM": ("bert", {}),
    "BigBirdModel": ("big_bird", {"attention_type": "original_full"}),
    "BioGptModel": ("biogpt", {}),
    "BloomModel": ("bloom", {}),
    "CTRLModel": ("ctrl", {}),
    "CLIPTextModel": ("clip_text_model", {}),
    "CohereModel": ("cohere", {}),
    "ConvBertModel": ("convbert", {}),
    "DebertaModel": ("deberta", RELATIVE | {"max_relative_positions": 8}),
    "DebertaV2Model": ("deberta-v2", RELATIVE | {"position_buckets": 4, "norm_rel_ebd": "layer_norm"}),
    "DistilBertModel": ("distilbert", {}),
    "ElectraModel": ("electra", {}),
    "ErnieModel": ("ernie", {}),
    "FalconModel": ("falcon", {"head_dim": "default"}),
    "FalconMambaModel": ("falcon_mamba", {}),
    "FNetModel": ("fnet", {}),
    "GemmaModel": ("gemma", {}),
    "Gemma2ForCausalLM": ("gemma2", {}),
    "Gemma3TextModel": ("gemma3_text", {}),
    "Glm4Model": ("glm4", {}),
    "GPT2Model": ("gpt2", {}),
    "GPT2LMHeadModel": ("gpt2", {}),
    "GPTBigCodeModel": ("gpt_bigcode", {}),
    "GPTJModel": ("gptj", {"rotary_dim": 8}),
    "GPTNeoXModel": ("gpt_neox", {}),
    "GptOssModel": ("gpt_oss", {}),
    "GraniteModel": ("granite", {}),
    "JambaModel": ("jamba", {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
                             "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False}),
    "Lfm2Model": ("lfm2", {}),
    "LlamaModel": ("llama", {}),
    "LlamaForCausalLM": ("llama", {"tie_word_embeddings": True}),
    "LongformerModel": ("longformer", {"attention_window": 4}),
    "MambaModel": ("mamba", {}),
    "Mamba2Model": ("mamba2", {"num_heads": 4, "n_groups": 1, "state_size": 8, "chunk_size": 4}),
    "MegatronBertModel": ("megatron-bert", {}),
    "MistralModel": ("mistral", {}),
    "MixtralModel": ("mixtral", {}),
    "MobileBertModel": ("mobilebert", {"true_hidden_size": 16, "intra_bottleneck_size": 16}),
    "ModernBertModel": ("modernbert", {}),
    "MPNetModel": ("mpnet", {}),
    "MptModel": ("mpt", {}),
    "NemotronModel": ("nemotron", {"num_key_value_heads": 2}),
    "NystromformerModel": ("nystromformer", {}),
    "Olmo2Model": ("olmo2", {}),
    "OlmoeModel": ("olmoe", {}),
    "OpenAIGPTModel": ("openai-gpt", {}),
    "OPTForCausalLM": ("opt", {}),
    "PersimmonModel": ("persimmon", {}),
    "PhiModel": ("phi", {}),
    "Phi3Model": ("phi3", {}),
    "Qwen2Model": ("qwen2", {}),
    "Qwen2MoeModel": ("qwen2_moe", {}),
    "Qwen3Model": ("qwen3", {}),
    "Qwen3MoeModel": ("qwen3_moe", {}),
    "RecurrentGemmaModel": ("recurrent_gemma", {}),
    "RobertaModel": ("roberta", {}),
    "RoFormerModel": ("roformer", {}),
    "SqueezeBertModel": ("squeezebert", {}),
    "StableLmModel": ("stablelm", {}),
    "Starcoder2Model": ("starcoder2", {}),
    "XLMModel": ("xlm", {}),
    "XLMRobertaModel": ("xlm-roberta", {}),
    "XLNetModel": ("xlnet", {"max_position_embeddings": "default"}),
}  # fmt: skip
TRANSLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "BartForConditionalGeneration": ("bart", {}),
    "BlenderbotModel": ("blenderbot", {}),
    "FSMTModel": ("fsmt", {"src_vocab_size": 40, "tgt_vocab_size": 40, "langs": ["a", "b"]}),
    "LongT5Model": ("longt5", {}),
    "M2M100Model": ("m2m_100", {}),
    "MarianModel": ("marian", {}),
    "MBartModel": ("mbart", {}),
    "MT5Model": ("mt5", {}),
    "NllbMoeModel": ("nllb-moe", {"encoder_sparse_step": 1, "decoder_sparse_step": 1, "expert_capacity": 32}),
    "PegasusForConditionalGeneration": ("pegasus", {}),
    "SwitchTransformersModel": ("switch_transformers", SPARSE),
    "T5ForConditionalGeneration": ("t5", {}),
    "UMT5Model": ("umt5", {}),
}
IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "BeitModel": ("beit", {}),
    "CLIPVisionModel": ("clip_vision_model", {}),
    "ConvNextModel": ("convnext", TWO | {"num_stages": 2}),
    "ConvNextV2Model": ("convnextv2", TWO | {"num_stages": 2}),
    "Data2VecVisionModel": ("data2vec-vision", {}),
    "DeiTModel": ("deit", {}),
    "Dinov2Model": ("dinov2", {}),
    "FocalNetModel": ("focalnet", {"embed_dim": 16, "depths": [1, 1], "focal_levels": [1, 1], "focal_windows": [1, 1],
                                   "patch_size": 4}),
    "IJepaModel": ("ijepa", {}),
    "PoolFormerModel": ("poolformer", TWO | {"patch_sizes": [3, 3], "strides": [2, 2], "padding": [1, 1],
                                             "num_encoder_blocks": 2}),
    "PvtModel": ("pvt", PYRAMID | {"patch_sizes": [4, 2], "strides": [4, 2], "sequence_reduction_ratios": [2, 1]}),
    "RegNetModel": ("regnet", TWO | {"embedding_size": 8, "groups_width": 4}),
    "ResNetModel": ("resnet", TWO | {"embedding_size": 8}),
    "SegformerModel": ("segformer", PYRAMID | {"patch_sizes": [3, 3], "sr_ratios": [2, 1]}),
    "SiglipVisionModel": ("siglip_vision_model", {}),
    "SwinModel": ("swin", SWIN),
    "Swinv2Model": ("swinv2", SWIN),
    "ViTModel": ("vit", {}),
    "ViTMSNModel": ("vit_msn", {}),
}  # fmt: skip
SOUNDS: dict[str, tuple[str, dict[str, Any]]] = {
    "HubertModel": ("hubert", SPEECH),
    "UniSpeechModel": ("unispeech", SPEECH),
    "Wav2Vec2Model": ("wav2vec2", SPEECH),
    "WavLMModel": ("wavlm", SPEECH),
}
WHISPER = {"num_mel_bins": 8, "max_source_positions": 6, "max_target_positions": 12}


def tiny(name: str, settings: dict[str, Any]) -> Any:
    """The configuration of an architecture with all common settings that it has, and ``settings``."""
    from transformers import CONFIG_MAPPING

    config_type = CONFIG_MAPPING[name]
    usual = config_type()
    numbers = {key: value for key, value in COMMON.items() if isinstance(getattr(usual, key, None), (int, float))}
    return config_type(**{key: value for key, value in (numbers | settings).items() if value != "default"})


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words(seed: int, n: int, length: int, low: int, high: int) -> Tensor:
    return torch.randint(low, high, (n, length), generator=torch.Generator().manual_seed(seed))


def first_tensor(output: Any) -> Tensor:
    """The logits, or else the last hidden state."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(value := getattr(output, name, None), Tensor):
            return value
    return output[0] if isinstance(output, (tuple, list)) else output


def made(model: str, table: dict[str, tuple[str, dict[str, Any]]]) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, model)(tiny(*table[model]))


def text(model: str) -> Specimen:
    ids = words(0, 1, 4, 3, 9), words(1, 3, 5, 20, VOCABULARY)
    return Specimen(made(model, TEXTS), tuple({"input_ids": i} for i in ids), first_tensor)


def translation(model: str) -> Specimen:
    ids = words(0, 1, 4, 3, 9), words(1, 3, 5, 20, VOCABULARY)
    calls = tuple({"input_ids": i, "decoder_input_ids": i.flip(1)} for i in ids)
    return Specimen(made(model, TRANSLATIONS), calls, first_tensor)


def image(model: str) -> Specimen:
    calls = tuple({"pixel_values": normal(n, n, 3, 16, 16)} for n in (2, 3))
    return Specimen(made(model, IMAGES), calls, first_tensor)


def sound(model: str) -> Specimen:
    return Specimen(made(model, SOUNDS), tuple({"input_values": normal(n, n, 400)} for n in (1, 3)), first_tensor)


def whisper(model: str) -> Specimen:
    table = {model: ("whisper", WHISPER)}
    ids = words(1, 1, 4, 3, 12), words(3, 3, 4, 20, VOCABULARY)
    calls = tuple({"input_features": normal(len(i), len(i), 8, 12), "decoder_input_ids": i} for i in ids)
    return Specimen(made(model, table), calls, first_tensor)


def clip(model: str) -> Specimen:
    """Texts and images in one space; the scale of their products is a parameter of its own."""
    import transformers

    torch.manual_seed(0)
    parts = {f"{part}_config": tiny(f"clip_{part}_model", {}).to_dict() for part in ("text", "vision")}
    calls = tuple({"input_ids": words(n, n, 4, 3, 20), "pixel_values": normal(n, n, 3, 16, 16)} for n in (2, 3))
    network = getattr(transformers, model)(transformers.CLIPConfig(**parts, projection_dim=16))
    return Specimen(network, calls, lambda output: output.logits_per_image)


def lora(name: str) -> Specimen:
    """BERT with adapters of peft; all else is frozen."""
    from peft import LoraConfig, get_peft_model

    specimen = text("BertModel")
    targets = {"LoRA": ["query", "value"], "LoRA of tables": ["word_embeddings", "query"]}[name]
    model = get_peft_model(specimen.model, LoraConfig(r=8, target_modules=targets, init_lora_weights=False))
    return Specimen(model, specimen.calls, specimen.output)


ARCHITECTURES: dict[str, Callable[[str], Specimen]] = {
    **dict.fromkeys(TEXTS, text), **dict.fromkeys(TRANSLATIONS, translation), **dict.fromkeys(IMAGES, image),
    **dict.fromkeys(SOUNDS, sound), "WhisperForConditionalGeneration": whisper, "CLIPModel": clip,
}  # fmt: skip
ADAPTERS: dict[str, Callable[[str], Specimen]] = {"LoRA": lora, "LoRA of tables": lora}
