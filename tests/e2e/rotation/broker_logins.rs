//! What NATS is shown: tokens, passwords and keys in files.

mod operator_mode;

use lab::NatsOptions;
use support::TestEnv;

use super::{Running, Secrets, database, make_tables, set_up};

/// Two key pairs: the one of the NATS documentation, and one of a seed that counts from 0 to 31.
const KEYS: [(&str, &str); 2] = [
    (
        "SUAIO3FHUX5PNV2LQIIP7TZ3N4L7TX3W53MQGEIVYFIGA635OZCKEYHFLM",
        "UD2FLLGFERQVQQ3SBKONNG2QMIMTZQKKLTU3AVG5I3EQEFHBPGPE2XQS",
    ),
    (
        "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y",
        "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK",
    ),
];

/// A way to log in that has been replaced once.
pub(super) struct Login {
    /// What the file holds, before and after.
    pub(super) secrets: [String; 2],
    /// What the server knows, before and after.
    pub(super) config: [String; 2],
    /// What the lab comes in by, before and after, if it needs something.
    pub(super) lab: [Option<String>; 2],
}

impl Login {
    /// What must not be told.
    pub(super) fn unsaid(&self) -> Vec<&str> {
        let lines = self.secrets.iter().flat_map(|it| it.lines());
        lines.filter(|it| !it.is_empty() && !it.starts_with('-')).collect()
    }
}

/// Besides the relay's user there is one for everybody else.
fn users(relay: &str) -> String {
    format!(
        "authorization {{ users: [ {relay}, {{ user: lab, password: lab }} ] }}\nno_auth_user: lab"
    )
}

pub(super) fn token() -> Login {
    let secrets = ["first-s3cret", "second-s3cret"];
    let config = secrets.map(|it| format!("authorization {{ token: \"{it}\" }}"));
    Login { secrets: secrets.map(Into::into), config, lab: secrets.map(|it| Some(it.into())) }
}

fn password() -> Login {
    let secrets = ["first-s3cret", "second-s3cret"];
    let config = secrets.map(|it| users(&format!("{{ user: relay, password: \"{it}\" }}")));
    Login { secrets: secrets.map(Into::into), config, lab: [None, None] }
}

fn nkey() -> Login {
    let config = KEYS.map(|(_, public)| users(&format!("{{ nkey: {public} }}")));
    let secrets = KEYS.map(|(seed, _)| seed.to_owned());
    Login { secrets, config, lab: [None, None] }
}

/// Servers that know the first secret, which is in a file.
pub(super) async fn before(login: &Login, secrets: &Secrets, variable: &str) -> TestEnv {
    let nats = NatsOptions {
        config: vec![login.config[0].clone()],
        token: login.lab[0].clone(),
        ..NatsOptions::default()
    };
    let mut env = set_up(database(&[], &[]), nats).await;
    secrets.renew("secret", &format!("{}\n", login.secrets[0]));
    env.set(variable, secrets.path("secret").to_str().expect("UTF-8"));
    env
}

/// Replaces what is in the file, and then what the server lets in: it ends connections at that.
async fn rotates(login: Login, variable: &str, more: &[(&str, &str)]) {
    let secrets = Secrets::new();
    let mut env = before(&login, &secrets, variable).await;
    for (name, value) in more {
        env.set(name, value);
    }
    make_tables(&env).await;
    let mut running = Running::start(env).await;
    let links = running.links();
    secrets.renew("secret", &login.secrets[1]);
    let config = login.config[1].clone();
    running.env.nats.reload(vec![config], login.lab[1].as_deref()).await.expect("reload");
    running.links_are_back(links).await;
    running.goes_on().await;
    for args in [&["status"][..], &["setup"], &["verify"], &["inbox", "setup"]] {
        running.env.ends_with(0, args).await;
    }
    running.end(&login.unsaid()).await;
}

mod long {
    use super::*;

    // proves: G-CRED-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_token_of_nats_is_replaced_under_load() {
        rotates(token(), "TAILPOST_NATS__TOKEN_FILE", &[]).await;
    }

    // proves: G-CRED-2
    #[tokio::test(flavor = "multi_thread")]
    async fn credentials_of_nats_are_replaced_under_load() {
        rotates(operator_mode::creds(), "TAILPOST_NATS__CREDS", &[]).await;
    }

    // proves: G-CRED-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_password_of_nats_is_replaced_under_load() {
        let user = ("TAILPOST_NATS__USER", "relay");
        rotates(password(), "TAILPOST_NATS__PASSWORD_FILE", &[user]).await;
    }

    // proves: G-CRED-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_of_nats_is_replaced_under_load() {
        rotates(nkey(), "TAILPOST_NATS__NKEY", &[]).await;
    }
}
