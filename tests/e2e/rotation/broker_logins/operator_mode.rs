//! A NATS server whose users have tokens that an account has signed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use nkeys::KeyPair;
use serde_json::{Value, json};

use super::Login;

/// Credentials of two users, of whom the account revokes the first. The lab has a third.
pub(super) fn creds() -> Login {
    let (operator, system) = (KeyPair::new_operator(), KeyPair::new_account());
    let (account, users) = (KeyPair::new_account(), [(); 3].map(|()| KeyPair::new_user()));
    let [first, second, lab] = users.each_ref().map(|it| user_creds(&account, it));
    let revoked = json!({ users[0].public_key(): Timestamp::now().as_second() + 3_600 });
    // A server that reads its configuration again takes no other one.
    let own = signed(&operator, &operator, json!({ "type": "operator", "version": 2 }));
    let config = [json!({}), revoked].map(|revoked| {
        let preloaded = [
            account_line(&operator, &system, 0, &json!({})),
            account_line(&operator, &account, -1, &revoked),
        ]
        .join("\n");
        format!(
            "operator: {own}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{preloaded}\n}}",
            system.public_key()
        )
    });
    Login { secrets: [first, second], config, lab: [Some(lab.clone()), Some(lab)] }
}

/// The system's account may not have JetStream, which is room.
fn account_line(operator: &KeyPair, account: &KeyPair, room: i64, revoked: &Value) -> String {
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": room, "disk_storage": room, "streams": -1,
        "consumer": -1
    });
    let claims =
        json!({ "type": "account", "version": 2, "limits": limits, "revocations": revoked });
    format!("{}: {}", account.public_key(), signed(operator, account, claims))
}

/// What `nsc generate creds` writes.
fn user_creds(account: &KeyPair, user: &KeyPair) -> String {
    let claims = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
    format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        signed(account, user, claims),
        user.seed().expect("it has a seed")
    )
}

/// A token about `subject`.
fn signed(issuer: &KeyPair, subject: &KeyPair, claims: Value) -> String {
    let subject = subject.public_key();
    let text = |it: Value| URL_SAFE_NO_PAD.encode(it.to_string());
    let header = text(json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let body = text(json!({
        "jti": uuid::Uuid::new_v4().to_string(), "iat": Timestamp::now().as_second(),
        "iss": issuer.public_key(), "name": subject, "sub": subject, "nats": claims
    }));
    let signature = issuer.sign(format!("{header}.{body}").as_bytes()).expect("it has a seed");
    format!("{header}.{body}.{}", URL_SAFE_NO_PAD.encode(signature))
}
