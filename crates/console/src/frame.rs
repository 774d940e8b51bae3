//! What is around every page.

use std::fmt;

use askama::Template;
use askama::filters::HtmlSafe;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;

use crate::app::App;
use crate::assets::Names;
use crate::problem::Problem;
use crate::state::figures::{age, clock, count, until};
use crate::state::history::Reach;
use crate::state::live_figures::{Figures, figures};
use crate::state::picture::Picture;
use crate::state::word::word;
use crate::visitor::{Visitor, saying};

/// The pages of the bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Overview,
    Log,
    DeadLetters,
    Events,
    Consumers,
    Work,
    Checks,
    Audit,
    Settings,
    Aside,
}

/// The bar, the footer, and what forms need.
pub(crate) struct Frame {
    pub(crate) title: String,
    pub(crate) at: Place,
    pub(crate) installation: String,
    pub(crate) base: String,
    pub(crate) names: Names,
    pub(crate) visitor: Visitor,
    pub(crate) may_change: bool,
    pub(crate) read_only: bool,
    pub(crate) shown: Shown,
    /// `good`, `trouble` or `unknown`.
    pub(crate) tone: &'static str,
    /// The query of the stream of changes; `None` for a page that does not change.
    pub(crate) live: Option<&'static str>,
    pub(crate) now: Timestamp,
}

impl Frame {
    pub(crate) fn new(app: &App, visitor: &Visitor, at: Place, title: &str) -> Self {
        Self::looking_back(app, visitor, at, title, Reach::QuarterHour)
    }

    pub(crate) fn looking_back(
        app: &App,
        visitor: &Visitor,
        at: Place,
        title: &str,
        reach: Reach,
    ) -> Self {
        let now = Timestamp::now();
        let see = |picture: &Picture| (figures(picture, now, reach), word(picture, now).class());
        let (all, tone) = app.watch.see(see);
        Self {
            title: title.to_owned(),
            at,
            installation: app.settings.title.clone(),
            base: app.settings.base_path.clone(),
            names: Names::new(),
            visitor: visitor.clone(),
            may_change: app.may_change(visitor),
            read_only: app.settings.read_only,
            shown: Shown(all),
            tone,
            live: match (at, reach) {
                (Place::Aside, _) => None,
                (_, Reach::QuarterHour) => Some(""),
                (_, Reach::Day) => Some("?reach=day"),
            },
            now,
        }
    }

    /// What the bar says of a page.
    pub(crate) fn current(&self, at: Place) -> &'static str {
        if self.at == at { "page" } else { "false" }
    }

    /// Who it is, as the audit has it, and the role.
    pub(crate) fn who(&self) -> String {
        let role = self.visitor.role.name();
        match self.visitor.name.as_deref().or(self.visitor.called.as_deref()) {
            Some(name) if name == role => role.to_owned(),
            None if self.visitor.is_signed_in() => role.to_owned(),
            name => format!("{} ({role})", name.unwrap_or("unnamed")),
        }
    }

    /// With milliseconds, where one follows another.
    pub(crate) fn exact(&self, at: &Option<Timestamp>) -> String {
        let day = |it: Timestamp| it.strftime("%Y-%m-%d").to_string();
        at.map_or_else(String::new, |it| {
            let clock = it.strftime("%H:%M:%S%.3f").to_string();
            if day(it) == day(self.now) { clock } else { format!("{} {clock}", day(it)) }
        })
    }

    pub(crate) fn count(&self, number: &u64) -> String {
        count(*number)
    }

    /// A time of the day, where the age would mislead: `since 09:12:00`.
    pub(crate) fn clock(&self, at: &Option<Timestamp>) -> String {
        at.map_or_else(|| "–".into(), |it| clock(it, self.now))
    }

    pub(crate) fn until(&self, at: &Timestamp) -> Until {
        Until { at: *at, now: self.now }
    }

    pub(crate) fn when(&self, at: &Option<Timestamp>) -> When {
        When { at: *at, now: self.now }
    }
}

/// A time to come, as how long that is.
pub(crate) struct Until {
    at: Timestamp,
    now: Timestamp,
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, now } = *self;
        let (exact, text) = (at.strftime("%Y-%m-%d %H:%M:%S UTC"), until(at, now));
        write!(f, "<time datetime=\"{at}\" title=\"{exact}\" data-until>{text}</time>")
    }
}

impl HtmlSafe for Until {}

/// Figures as a page has them: each in an element that the script finds by its name.
pub(crate) struct Shown(Figures);

impl Shown {
    pub(crate) fn live(&self, name: &str) -> Live {
        Live { name: name.to_owned(), text: self.0.text(name).to_owned() }
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.text(name)
    }

    pub(crate) fn path(&self, name: &str) -> &str {
        self.0.path(name)
    }

    pub(crate) fn shape(&self) -> &str {
        &self.0.shape
    }
}

/// A figure that changes.
pub(crate) struct Live {
    name: String,
    text: String,
}

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, text) = (Escaped(&self.name), Escaped(&self.text));
        write!(f, "<span data-live=\"{name}\">{text}</span>")
    }
}

impl HtmlSafe for Live {}

/// A time, as its age.
pub(crate) struct When {
    at: Option<Timestamp>,
    now: Timestamp,
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(at) = self.at else { return f.write_str("–") };
        let (exact, clock, age) =
            (at.strftime("%Y-%m-%d %H:%M:%S UTC"), clock(at, self.now), age(at, self.now));
        write!(f, "<time datetime=\"{at}\" title=\"{exact}\" data-clock=\"{clock}\">{age}</time>")
    }
}

impl HtmlSafe for When {}

/// A text in which what is between backticks is code.
pub(crate) fn ticked(text: &str) -> Ticked<'_> {
    Ticked(text)
}

pub(crate) struct Ticked<'a>(&'a str);

impl fmt::Display for Ticked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.0.split('`').collect();
        // One that is alone is a letter like others.
        if parts.len() % 2 == 0 {
            return write!(f, "{}", Escaped(self.0));
        }
        for (place, part) in parts.into_iter().enumerate() {
            match place % 2 {
                0 => write!(f, "{}", Escaped(part))?,
                _ => write!(f, "<code class=\"wrap\">{}</code>", Escaped(part))?,
            }
        }
        Ok(())
    }
}

impl HtmlSafe for Ticked<'_> {}

/// A text between tags or quotes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for it in self.0.chars() {
            match it {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                it => write!(f, "{it}")?,
            }
        }
        Ok(())
    }
}

/// A page as an answer.
pub(crate) fn page(template: &impl Template) -> Result<Response, Problem> {
    page_with(StatusCode::OK, template)
}

/// Back to a page, which says what was done.
pub(crate) fn done(app: &App, path: &str, said: &str) -> Response {
    let to = Redirect::to(&format!("{}{path}", app.settings.base_path));
    ([(header::SET_COOKIE, saying(said))], to).into_response()
}

pub(crate) fn page_with(status: StatusCode, template: &impl Template) -> Result<Response, Problem> {
    let failed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be written");
    let text = template.render().map_err(failed)?;
    Ok((status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response())
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    frame: Frame,
    problem: Problem,
}

/// A refusal as a page.
pub(crate) fn problem_page(app: &App, visitor: &Visitor, problem: Problem) -> Response {
    let frame = Frame::new(app, visitor, Place::Aside, problem.title);
    let status = problem.status;
    page_with(status, &ProblemPage { frame, problem }).unwrap_or_else(|_| status.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_text() {
        let name = "<img src=x onerror=\"alert('1')\">".to_owned();
        let live = Live { name: name.clone(), text: name };
        let escaped = "&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;";
        assert_eq!(live.to_string(), format!("<span data-live=\"{escaped}\">{escaped}</span>"));
        let code = ticked("is `a<b` there?").to_string();
        assert_eq!(code, "is <code class=\"wrap\">a&lt;b</code> there?");
        assert_eq!(ticked("it`s").to_string(), "it`s");
    }
}
