use super::*;

#[test]
fn statements_are_written_down() {
    let schema = "public";
    let close = |it| decide_letters::close_letters(schema, it);
    let statements = [
        ("list letters", list_letters::list_letters(schema)),
        ("list letters whole", list_letters::list_originals(schema)),
        ("count letters", list_letters::count_letters(schema, false)),
        ("count many letters", list_letters::count_letters(schema, true)),
        ("group letters", list_letters::group_letters_of(schema, false)),
        ("group many letters", list_letters::group_letters_of(schema, true)),
        ("page letters", list_letters::page_letters(schema)),
        ("list decisions", list_letters::list_decisions(schema)),
        ("list backlogs", list_letters::list_backlogs(schema)),
        ("requeue letters", decide_letters::requeue_letters(schema)),
        ("reject letters", close(["reject", "REJECTED"])),
        ("discard letters", close(["discard", "DEAD"])),
        ("note a reading", decide_letters::note_reading(schema)),
        ("mark processed", decide_letters::mark_processed(schema)),
        ("try an event now", decide_letters::try_now(schema)),
        ("list what fails", list_letters::list_failing(schema)),
        ("name the database", look_up_records::NAME_DATABASE.to_owned()),
        ("look up events", look_up_records::look_up(schema)),
        ("explain: records", look_up_records::records(schema)),
        ("explain: attempts", look_up_records::attempts(schema)),
        ("attempts that failed, by answer", look_up_records::failed_answers(schema)),
        ("explain: letters", look_up_records::letters(schema)),
        ("consumers", look_up_records::consumers(schema)),
        ("pause a consumer", control_consumers::pause(schema)),
        ("resume a consumer", control_consumers::resume(schema)),
        ("close a breaker", control_consumers::close_breaker(schema)),
        ("list who wanted what", control_consumers::list_entries(schema)),
        ("plan a rewind", plan_rewinds::count_states(schema)),
        ("find the pending rewind", plan_rewinds::find_pending(schema)),
        ("find a rewind", plan_rewinds::find(schema)),
        ("list rewinds", plan_rewinds::list(schema)),
        ("cancel a rewind", plan_rewinds::cancel(schema)),
    ];
    let about = "What operators run on the tables of the inbox.";
    lab::check_statements("crates/operate/src/sql/records/statements.sql", about, &statements);
}
