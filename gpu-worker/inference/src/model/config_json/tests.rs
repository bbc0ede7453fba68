//! Both dialects, and what is refused.

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;

/// A sound configuration with some fields replaced; null removes one.
fn config(changes: &Value) -> Value {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
    });
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    config
}

fn read(changes: &Value) -> Result<ModelConfig, Fault> {
    parse::<ConfigJson>(config(changes).to_string().as_bytes())?.to_model(Some(100))
}

fn check_fault(changes: &Value, expected: &Expect) {
    expected.assert_eq(&match read(changes) {
        Ok(config) => format!("{config:?}"),
        Err(Fault::Corrupt(what)) => format!("corrupt: {what}"),
        Err(Fault::Unsupported(what)) => format!("unsupported: {what}"),
    });
}

#[test]
fn both_dialects_give_the_same_rotary_frequencies() {
    let llama3 = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64 });
    let mut new = llama3.clone();
    new["rope_theta"] = json!(5e5);
    let hub = read(&json!({ "rope_theta": 5e5, "rope_scaling": llama3 })).unwrap();
    assert_eq!(hub, read(&json!({ "rope_parameters": new })).unwrap());
    assert_ne!(hub.rope, read(&json!({ "rope_theta": 5e5 })).unwrap().rope);

    let old_name = read(&json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } })).unwrap();
    assert_eq!(old_name.rope.inv_freq[0], 0.5);
}

#[test]
fn absent_and_null_fields_have_their_defaults() {
    let model =
        read(&json!({ "head_dim": null, "num_key_value_heads": null, "rope_scaling": null }))
            .unwrap();
    assert_eq!(
        (model.head_dim, model.kv_heads, model.tied_embeddings),
        (16, 4, false)
    );
    assert_eq!((model.tokenizer_vocab_size, model.vocab_size), (100, 128));
    assert_eq!(read(&json!({ "head_dim": 32 })).unwrap().head_dim, 32);
}

#[test]
fn generation_config_wins_for_the_end_of_text() {
    let check = |config_eos: Value, generation: Value, expected: &[u32]| {
        let config: ConfigJson = parse(
            config(&json!({ "eos_token_id": config_eos }))
                .to_string()
                .as_bytes(),
        )
        .unwrap();
        let generation: GenerationJson = parse(generation.to_string().as_bytes()).unwrap();
        assert_eq!(config.stop_tokens(&generation).unwrap(), expected);
    };
    check(json!(2), json!({}), &[2]);
    check(json!([3, 2, 3]), json!({}), &[2, 3]);
    check(json!(2), json!({ "eos_token_id": [9, 7] }), &[7, 9]);
    check(json!(2), json!({ "eos_token_id": null }), &[2]);
    check(Value::Null, json!({}), &[]);
}

#[test]
fn what_is_not_built_is_named() {
    check_fault(
        &json!({ "architectures": ["Qwen2ForCausalLM"] }),
        &expect!["unsupported: architecture Qwen2ForCausalLM"],
    );
    check_fault(
        &json!({ "rope_scaling": { "rope_type": "yarn", "factor": 2.0 } }),
        &expect!["unsupported: rotary scaling yarn"],
    );
    check_fault(
        &json!({ "quantization_config": { "quant_method": "awq" } }),
        &expect!["unsupported: quantization_config of method awq"],
    );
    check_fault(
        &json!({ "attention_bias": true }),
        &expect!["unsupported: attention_bias"],
    );
    check_fault(
        &json!({ "mlp_bias": true }),
        &expect!["unsupported: mlp_bias"],
    );
    check_fault(
        &json!({ "hidden_act": "gelu" }),
        &expect!["unsupported: hidden_act gelu"],
    );
    check_fault(
        &json!({ "partial_rotary_factor": 0.5 }),
        &expect!["unsupported: partial_rotary_factor 0.5"],
    );
}

#[test]
fn hostile_numbers_are_named() {
    check_fault(
        &json!({ "hidden_size": 0 }),
        &expect!["corrupt: hidden size is 0, and must be 1 to 16777216"],
    );
    check_fault(
        &json!({ "hidden_size": u64::MAX }),
        &expect!["corrupt: hidden size is 18446744073709551615, and must be 1 to 16777216"],
    );
    check_fault(
        &json!({ "head_dim": 1 << 20 }),
        &expect!["corrupt: head size is 1048576, and must be even and at most 1024"],
    );
    check_fault(
        &json!({ "head_dim": 15 }),
        &expect!["corrupt: head size is 15, and must be even and at most 1024"],
    );
    check_fault(
        &json!({ "num_attention_heads": 0 }),
        &expect!["corrupt: query head count is 0, and must be 1 to 16777216"],
    );
    check_fault(
        &json!({ "num_key_value_heads": 3 }),
        &expect!["corrupt: 4 query heads do not share 3 KV heads evenly"],
    );
    check_fault(
        &json!({ "rope_theta": -1.0 }),
        &expect!["corrupt: rope_theta is -1"],
    );
    check_fault(
        &json!({ "rope_scaling": { "rope_type": "linear", "factor": 0.0 } }),
        &expect!["corrupt: factor of the rotary scaling is 0"],
    );
    check_fault(
        &json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0 } }),
        &expect!["corrupt: low_freq_factor of the rotary scaling is missing"],
    );
    check_fault(
        &json!({ "rms_norm_eps": 0.0 }),
        &expect!["corrupt: the norm's epsilon is 0"],
    );
    check_fault(
        &json!({ "vocab_size": 99 }),
        &expect!["corrupt: the tokenizer has 100 tokens, the embedding table 99 rows"],
    );
    check_fault(
        &json!({ "vocab_size": "x" }),
        &expect![[
            r#"corrupt: it does not parse: invalid type: string "x", expected usize at line 1 column 54"#
        ]],
    );
}
