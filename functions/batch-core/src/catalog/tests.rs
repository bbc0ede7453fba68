use expect_test::{Expect, expect};

use super::{Catalog, Engine, Model, Source};

const REST: &str =
    r#""id": "m", "endpoints": [], "price": {"input_per_million": 0, "output_per_million": 0}"#;

fn read(fields: &str) -> Result<Model, String> {
    let text = format!("{{{REST}, {fields}}}");
    let model: Model = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Catalog::new(vec![model.clone()]).map_err(|error| error.to_string())?;
    Ok(model)
}

fn check(fields: &str, expected: Expect) {
    expected.assert_eq(&read(fields).expect_err("it is not valid"));
}

#[test]
fn model_without_an_engine_is_one_of_files() {
    let model = read(r#""source": {"path": "m.gguf"}"#).expect("it is valid");
    assert_eq!(
        model.engine,
        Engine::Native(Source::Path("m.gguf".to_owned()))
    );
    let same = read(r#""engine": "native", "source": {"path": "m.gguf"}"#);
    assert_eq!(same, Ok(model));
}

#[test]
fn server_needs_its_url_alone() {
    let model =
        read(r#""engine": "http", "server": {"url": "http://gpu:8000/v1/"}"#).expect("it is valid");
    let Engine::Http(server) = model.engine else {
        panic!("not a server: {:?}", model.engine);
    };
    assert_eq!(server.base(), "http://gpu:8000/v1");
    assert_eq!(server.model_name("m"), "m");
    assert_eq!((server.requests_max, server.timeout_seconds), (256, 600));
}

#[test]
fn fields_that_do_not_go_together_are_told_with_what_to_do() {
    check(
        r#""engine": "http""#,
        expect![[
            r#"model 'm' has engine = "http" and no server: add server.url, such as "http://127.0.0.1:8000/v1""#
        ]],
    );
    check(
        r#""engine": "http", "source": {"path": "m"}, "server": {"url": "http://gpu/v1"}"#,
        expect![[
            r#"model 'm' has engine = "http" and a source: remove source, the server has the model's files"#
        ]],
    );
    check(
        r#""aliases": []"#,
        expect![[
            r#"model 'm' has no source: name its files, or a server with engine = "http" and server.url"#
        ]],
    );
    check(
        r#""source": {"path": "m"}, "server": {"url": "http://gpu/v1"}"#,
        expect![[
            r#"model 'm' has a server, which engine = "http" alone uses: add that, or remove server"#
        ]],
    );
}

#[test]
fn faults_of_a_server_name_model_and_field() {
    let with = |field: &str| format!(r#""engine": "http", "server": {{{field}}}"#);
    for url in [
        "gpu:8000/v1",
        "ftp://gpu/v1",
        "http:///v1",
        "http://:8000/v1",
        "http://gpu/v1?key=1",
        "http://gpu/v1#a",
        "http://g pu/v1",
        "",
    ] {
        check(
            &with(&format!(r#""url": "{url}""#)),
            expect![[
                r#"model 'm': server.url must be http:// or https://, a host and a path, such as "http://127.0.0.1:8000/v1", without a query"#
            ]],
        );
    }
    check(
        &with(r#""url": "http://me:secret@gpu/v1""#),
        expect![
            "model 'm': server.url must not hold a user or a password: name a variable with the key in server.api_key_env"
        ],
    );
    let url = r#""url": "http://gpu/v1""#;
    check(
        &with(&format!(r#"{url}, "model": """#)),
        expect![
            "model 'm': server.model must have 1 to 256 characters: the name that the server lists under /models"
        ],
    );
    check(
        &with(&format!(r#"{url}, "api_key_env": "sk-1234""#)),
        expect![[
            r#"model 'm': server.api_key_env must be the name of an environment variable, such as "VLLM_API_KEY", and not the key itself"#
        ]],
    );
    for requests in [0, 4_097] {
        check(
            &with(&format!(r#"{url}, "requests_max": {requests}"#)),
            expect!["model 'm': server.requests_max must be from 1 to 4096"],
        );
    }
    for seconds in [0, 7_201] {
        check(
            &with(&format!(r#"{url}, "timeout_seconds": {seconds}"#)),
            expect!["model 'm': server.timeout_seconds must be from 1 to 7200"],
        );
    }
}
