//! Which dead letters are meant.

use super::*;

#[test]
fn a_filter_is_the_same_in_every_form() {
    let filter = Filter {
        source: "relay".into(),
        reason: "payload exceeds ".into(),
        aggregate: "order:a/b:c".into(),
        ..Filter::default()
    };
    let address = "source=relay&reason=payload%20exceeds%20&aggregate=order%3Aa%2Fb%3Ac";
    assert_eq!(filter.address(), address);
    assert_eq!(filter.query(50).replace("limit=50", "source=relay"), address);
    let body = json!({
        "aggregate": { "kind": "order", "id": "a/b:c" }, "reason": "payload exceeds "
    });
    assert_eq!(filter.body(), body);
}
