//! Turns the findings of rpma-sys in the headers into cfgs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["native_flush", "native_atomic_write"] {
        println!("cargo::rustc-check-cfg=cfg({name})");
        let variable = format!("DEP_RPMA_VERBS_{}", name.to_uppercase());
        if std::env::var(variable).is_ok_and(|value| value == "1") {
            println!("cargo::rustc-cfg={name}");
        }
    }
}
