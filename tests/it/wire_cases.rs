//! Files as users really write them, and what each must lead to: `cases/wire`.

use std::process::Command;

use system_tests::environment::{model, sdks};
use system_tests::service::{Options, Service};

use crate::sdk::{run_script, scripts};

#[test]
fn every_wire_case_leads_to_what_it_says() {
    let (Some(_), Some(sdks)) = (model(), sdks()) else {
        return;
    };
    let service = Service::start(Options {
        log: "warn".to_owned(),
        ..Options::default()
    });
    run_script(
        &service,
        Command::new(sdks.join("python-latest/bin/python")).arg(scripts().join("wire_cases.py")),
    );
}
