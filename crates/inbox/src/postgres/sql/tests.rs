use super::*;

#[test]
fn statements_are_written_down() {
    let schema = "public";
    let statements = [
        ("mark a connection", hold_role::MARK_CONNECTION.to_owned()),
        ("end connections", hold_role::END_CONNECTIONS.to_owned()),
        ("find the role", hold_role::find_role(schema)),
        ("look around", hold_role::look_around(schema)),
        ("leave", hold_role::leave(schema)),
        ("take the role", hold_role::take_role(schema)),
        ("renew roles", hold_role::renew_roles(schema)),
        ("release roles", hold_role::release_roles(schema)),
        ("find what is handled", handled_up_to::find_handled(schema)),
        ("write down what is handled", handled_up_to::write_handled(schema)),
        ("first that is not handled", handled_up_to::first_unhandled(schema)),
        ("last in its place", handled_up_to::last_in_place(schema)),
        ("write down what was seen", seen_stream::write_seen(schema)),
        ("note what left the stream", unread_words::note_unread(schema)),
        ("record new events", claim::record_new_events(schema)),
        ("note outcomes", complete::note_outcomes(schema)),
        ("claim events", claim::claim_events(schema, UNRESOLVED)),
        ("extend leases", renew::extend_leases(schema)),
        ("end claims", complete::end_claims(schema)),
        ("end claims, some of which failed", complete::end_failed_claims(schema)),
        ("find claims that have no end", complete::find_unended(schema)),
        ("park a claimed event", park::park_claimed(schema)),
        ("park an event that failed", park::park_failed(schema)),
        ("park after crashes", park::park_crashed(schema, UNRESOLVED)),
        ("park what is forgotten", park::park_forgotten(schema)),
        ("park anyhow", park::park_anyhow(schema, UNRESOLVED)),
        ("find letters that are due", requeued::find_due(schema)),
        ("find a letter", requeued::find_letter(schema)),
        ("find events that nobody has", requeued::find_orphans(schema)),
        ("sweep letters", requeued::sweep_letters(schema)),
        ("forget attempts", attempts::forget_page(schema)),
        ("find what is wanted", control::find_control(schema)),
        ("find what is tried at once", control::find_decided(schema)),
        ("find a rewind", rewind_records::find_mine(schema)),
        ("request a rewind", rewind_records::request(schema)),
        ("begin a rewind", rewind_records::begin(schema)),
        ("remove records", rewind_records::remove(schema)),
        ("end a rewind", rewind_records::end(schema)),
    ];
    let about = "What a worker runs on the tables of the inbox.";
    lab::check_statements("crates/inbox/src/postgres/sql/statements.sql", about, &statements);
}
