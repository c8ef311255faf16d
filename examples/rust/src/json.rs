//! As much of JSON as the protocol needs.

use std::collections::HashMap;

pub enum Json {
    /// A number, `true`, `false` or `null`, as it is written.
    Plain(String),
    Text(String),
    List(Vec<Json>),
    Object(HashMap<String, Json>),
}

static ABSENT: Json = Json::Text(String::new());

impl Json {
    /// Panics where the text is no JSON, which ends the worker.
    pub fn parse(text: &[u8]) -> Json {
        Reader { text, at: 0 }.value()
    }

    pub fn get(&self, key: &str) -> &Json {
        match self {
            Json::Object(fields) => fields.get(key).unwrap_or(&ABSENT),
            _ => &ABSENT,
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Json::Plain(text) | Json::Text(text) => text,
            _ => "",
        }
    }

    pub fn integer(&self) -> i64 {
        self.text().parse().expect("an integer")
    }

    pub fn items(&self) -> &[Json] {
        match self {
            Json::List(items) => items,
            _ => &[],
        }
    }

    pub fn integers(&self) -> Vec<i64> {
        self.items().iter().map(Json::integer).collect()
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> Json {
        match self.peek() {
            b'{' => {
                let mut fields = HashMap::new();
                self.list(b'}', |reader| {
                    let key = reader.quoted();
                    reader.expect(b':');
                    fields.insert(key, reader.value());
                });
                Json::Object(fields)
            }
            b'[' => {
                let mut items = Vec::new();
                self.list(b']', |reader| items.push(reader.value()));
                Json::List(items)
            }
            b'"' => Json::Text(self.quoted()),
            _ => {
                let rest = &self.text[self.at..];
                let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                let size = rest.iter().take_while(|byte| plain(byte)).count();
                assert!(size > 0, "a message is no JSON");
                self.at += size;
                Json::Plain(String::from_utf8_lossy(&rest[..size]).into_owned())
            }
        }
    }

    fn peek(&mut self) -> u8 {
        while self.text[self.at].is_ascii_whitespace() {
            self.at += 1;
        }
        self.text[self.at]
    }

    fn expect(&mut self, wanted: u8) {
        assert_eq!(self.peek(), wanted, "a message is no JSON");
        self.at += 1;
    }

    fn list(&mut self, closing: u8, mut item: impl FnMut(&mut Self)) {
        self.at += 1;
        while self.peek() != closing {
            item(self);
            if self.peek() == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
    }

    /// Names and words, whose only escapes are of single characters.
    fn quoted(&mut self) -> String {
        self.expect(b'"');
        let mut read = Vec::new();
        while self.text[self.at] != b'"' {
            if self.text[self.at] == b'\\' {
                self.at += 1;
            }
            read.push(self.text[self.at]);
            self.at += 1;
        }
        self.at += 1;
        String::from_utf8(read).expect("UTF-8")
    }
}
